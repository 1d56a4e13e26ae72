"""Ranks that srun starts, on machines where a Slurm does; elsewhere nothing is left to test."""

import json
import shutil
import subprocess

import pytest

from tests import launch

SRUN = ["srun", "--immediate=60", "-n", "2"]
CASES = ("messages", "errors")


def answers() -> bool:
    """Whether there is a Slurm that gives this machine two tasks at once."""
    if shutil.which("srun") is None:
        return False
    try:
        return subprocess.run([*SRUN, "true"], capture_output=True, timeout=60, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.fixture(scope="module")
def mpich():
    library = launch.find("mpich")
    if library is None or not answers():
        pytest.skip("no MPICH here, or no Slurm that starts two tasks")
    return library


def test_a_group_of_ranks_that_srun_starts(mpich):
    command = [*SRUN, "--mpi=pmi2", mpich.python, "-m", "tests.programs.backend", *CASES]
    done = launch.run_command(command, mpich.environment({"OMP_NUM_THREADS": "1"}))
    assert done.returncode == 0, launch.describe(command, done.returncode, done.stdout, done.stderr)
    for case in CASES:
        assert done.stdout.count(f"{case}: right") == 2, case
    assert done.stdout.count("left in order") == 2


def test_srun_without_the_librarys_protocol_is_named(mpich):
    command = [*SRUN, "--mpi=none", mpich.python, "-m", "tests.programs.backend", "errors"]
    done = launch.run_command(command, mpich.environment())
    assert done.returncode != 0
    assert "srun started 2 processes, but each is a world of one" in done.stderr
    assert "--mpi=pmi2" in done.stderr


def test_a_command_starts_its_ranks_in_an_allocation(mpich):
    bench = ["-m", "tuner.cli", "bench", "--sizes", "1024", "--contenders", "treering", "--json"]
    command = ["salloc", "--immediate=60", "-n", "2", mpich.python, *bench]
    done = launch.run_command(command, mpich.environment({"OMP_NUM_THREADS": "1"}))
    assert done.returncode == 0, launch.describe(command, done.returncode, done.stdout, done.stderr)
    assert [row["ranks"] for row in json.loads(done.stdout)["rows"]] == [2]
