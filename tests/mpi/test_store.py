"""Ranks of one node that were started by no MPI launcher, and have no MPI."""

import json

import pytest

from tests import launch

SOON = 60
STORE = pytest.mark.parametrize("mpi", [launch.STORE], indirect=True)
TRAINED = ("bucket views", "unused parameters", "several dtypes", "the user's calls", "real training", "table")


@STORE
def test_what_it_serves_and_refuses_and_leaves(mpi):
    assert mpi(3, "store", timeout=120).stdout.count(": right") == 3


@pytest.mark.full
@STORE
def test_symmetric_memory(mpi):
    assert mpi(2, "symmetric", timeout=240).stdout.count("symmetric memory is right") == 2


@STORE
@pytest.mark.parametrize(
    "way, says",
    [
        ("kill", "rank 2 has ended; see its own output"),
        ("raise", "rank 2 leaves after ArithmeticError: the last rank exploded"),
        ("sleep", "CollectiveTimeout: rank "),
    ],
)
def test_a_rank_that_goes_wrong_ends_all(mpi, way, says):
    done = mpi.run(3, ["-m", "tests.programs.engine_stops", way], timeout=SOON)
    said = launch.describe(done.args, done.returncode, done.stdout, done.stderr)
    assert done.returncode != 0, said
    assert "came to the end" not in done.stdout, said
    assert says in done.stderr, said


@pytest.mark.full
def test_gradients_under_torchrun_are_those_of_plain_ddp(tmp_path):
    program = ["-m", "tests.programs.ddp_parity", *TRAINED]
    done = launch.torchrun(2, program, env={"TREERING_TEST_STORE": str(tmp_path / "store")})
    assert done.returncode == 0, launch.describe(done.args, done.returncode, done.stdout, done.stderr)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert {line["case"]: line["wrong"] for line in found} == {name: [] for name in TRAINED}
