"""torch.distributed over treering's backend, under MPI libraries and under torchrun without any."""

import json
import subprocess
import sys

import pytest

from tests import launch
from tests.programs.backend import CASES
from tests.programs.backend_further import CASES as FURTHER
from tests.programs.fsdp import CASES as SHARDED

REFUSALS = {
    "a rank that never comes": ("LaunchError", ["rank 1 of 2 did not come within 1 s"]),
    "a rank too many": ("ValueError", ["rank 2 is not one of 2 ranks"]),
    "a port taken": ("DistNetworkError", ["EADDRINUSE"]),
    "another device": ("UnsupportedError", ["only CPU memory is served"]),
}


def check(done, ranks):
    assert done.returncode == 0, launch.describe(done.args, done.returncode, done.stdout, done.stderr)
    for case in CASES:
        assert done.stdout.count(f"{case.__name__}: right") == ranks, case.__name__
    assert done.stdout.count("left in order") == ranks


def test_every_call_under_mpi(mpi):
    ranks = 3 if mpi.name == "mpich" else 2
    check(mpi(ranks, "backend", env={"OMP_NUM_THREADS": "1"}), ranks)


@pytest.mark.full
def test_what_pytorchs_own_tests_ask_of_a_backend(mpich):
    done = mpich(3, "backend_further", env={"OMP_NUM_THREADS": "1"})
    for case in FURTHER:
        assert done.stdout.count(f"{case.__name__}: right") == 3, case.__name__


@pytest.mark.full
def test_fsdp2_and_hsdp_give_the_gradients_of_one_process(mpich):
    done = mpich(4, "fsdp", env={"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"})
    found = {line["case"]: line for line in map(json.loads, done.stdout.splitlines()[:-1])}
    assert {case: line["wrong"] for case, line in found.items()} == {case: [] for case in SHARDED}
    for case, line in found.items():
        symmetric, lent = line["symmetric"]
        assert lent == 0 if case.startswith("plain") else 4 * symmetric >= 3 * (lent - 5), case  # 5 are results
    assert done.stdout.endswith("loans: right\n")


def test_messages_between_nodes_are_mpis_own(mpich):
    done = mpich(2, "backend", "messages", "layouts", "errors", env={"TREERING_RANKS_PER_NODE": "1"})
    assert done.stdout.count("messages: right") == 2


@pytest.mark.full
def test_every_call_under_torchrun_without_mpi():
    check(launch.torchrun(2, ["-m", "tests.programs.backend"]), 2)


@pytest.fixture(scope="module")
def refusals():
    command = [sys.executable, "-m", "tests.programs.backend_refusals"]
    done = subprocess.run(command, cwd=launch.ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_is_named(refusals, case):
    kind, words = REFUSALS[case]
    assert refusals[case][0] == kind, refusals[case]
    assert all(word in refusals[case][1] for word in words), refusals[case]
