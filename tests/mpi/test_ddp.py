"""The PyTorch door: parity with plain DDP, refusals, the way out, and process groups without MASTER_ADDR."""

import json

import pytest

from integrations import torch_launch
from tests import launch

pytestmark = pytest.mark.mpi
CASES = (
    "plain",
    "plain, gradients zeroed",
    "bucket views",
    "bucket views, gradients zeroed",
    "unused parameters",
    "unused parameters, bucket views",
    "static graph",
    "static graph, bucket views",
    "accumulation",
    "accumulation, bucket views",
    "two backwards",
    "two backwards, bucket views",
    "1 KB buckets",
    "100 MB bucket",
    "several dtypes",
    "complex",
    "helper thread",
    "helper thread, bucket views, accumulation",
    "helper thread, static graph",
    "closed while busy",
    "overlap tried out",
    "uneven inputs",
    "two models",
    "the user's calls",
    "sub-groups",
    "float16 wrapper",
    "bfloat16 wrapper",
    "infinite gradient",
    "compiled",
    "real training",
    "report",
    "table",
)
TRAINED_BY = (
    "plain",
    "unused parameters",
    "several dtypes",
    "1 KB buckets",
    "helper thread",
    "uneven inputs",
    "real training",
)


def lines(output: str) -> dict[str, dict]:
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {line["case"]: line for line in found}


@pytest.fixture(scope="module")
def parity() -> dict[int, dict[str, dict]]:
    """One launch a number of ranks, made when first asked for, serves all its cases."""
    return {}


@pytest.mark.parametrize(
    "ranks", [1, 2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_plain_ddp(mpich, parity, ranks, case):
    if ranks not in parity:
        parity[ranks] = {}
        parity[ranks] = lines(mpich(ranks, "ddp_parity", timeout=240).stdout)
        assert tuple(parity[ranks]) == CASES
    assert case in parity[ranks], "the launch failed"
    assert parity[ranks][case]["wrong"] == []


def test_parity_on_every_mpi_library(mpi):
    seen = lines(mpi(2, "ddp_parity", *TRAINED_BY, timeout=240).stdout)
    assert {name: line["wrong"] for name, line in seen.items()} == {name: [] for name in TRAINED_BY}


REFUSALS = {
    "not DDP": ("TypeError", ["Linear", "wrap it in DDP"]),
    "second registration": ("RuntimeError", ["already has a communication hook", "allreduce_hook"]),
    "sparse module": ("TypeError", ["sparse", "embedding", "sparse=False"]),
    "sparse gradient": ("TypeError", ["sparse=False", "bucket"]),
    "other device": ("UnsupportedError", ["meta", "CPU"]),
    "closed communicator": ("CommunicatorBroken", ["closed"]),
    "closed state": ("CommunicatorBroken", ["closed", "rank 0 was averaging DDP's bucket 0"]),
    "other ranks": ("ValueError", ["2 ranks", "comm="]),
    "compression": ("UnsupportedError", ["compression", "fp16_compress_wrapper"]),
    "unknown overlap": ("ValueError", ["some", "inline"]),
    "unknown zero copy": ("ValueError", ["some", "auto"]),
    "unknown keyword": ("TypeError", ["tables"]),
    "no such table": ("TableError", ["/nowhere/table.json"]),
    "second process group": ("RuntimeError", ["exists already"]),
}


def test_refusals_say_what_and_the_mend(mpich):
    seen = lines(mpich(2, "ddp_errors").stdout)
    assert set(seen) == set(REFUSALS)
    for case, (kind, words) in REFUSALS.items():
        assert seen[case]["type"] == kind, seen[case]
        assert seen[case]["same"], f"{case}: rank 1 saw another error"
        assert all(word in seen[case]["text"] for word in words), seen[case]


def check_that_it_ends(ranks, way, cause):
    done = ranks.run(2, ["-m", "tests.programs.ddp_stops", way])
    said = launch.describe(done.args, done.returncode, done.stdout, done.stderr)
    assert done.returncode != 0, said
    assert cause in done.stderr, said
    assert "trained to the end" not in done.stdout, said


def test_a_rank_that_raises_in_backward_ends_the_job(mpi):
    check_that_it_ends(mpi, "raise", "ArithmeticError: the loss exploded on rank 1")


@pytest.mark.parametrize(
    "way, cause",
    [
        ("sleep", "CollectiveTimeout"),
        ("differ", "MismatchError"),
        ("die", ""),  # which survivor gets to speak is the launcher's choice
    ],
)
def test_training_that_goes_wrong_ends_the_job(mpich, way, cause):
    check_that_it_ends(mpich, way, cause)


def test_state_resumes_at_another_number_of_ranks(mpich, tmp_path):
    mpich(2, "ddp_checkpoint", "save", tmp_path / "state.pickle")
    mpich(3, "ddp_checkpoint", "resume", tmp_path / "state.pickle")


def test_worlds_of_one_are_refused_with_the_mend(mpich, tmp_path):
    foreign = {"OMPI_COMM_WORLD_SIZE": "4"}  # what Open MPI's launcher tells a process that uses another library
    done = mpich.run(1, ["-m", "tests.programs.ddp_checkpoint", "save", str(tmp_path / "x")], env=foreign)
    assert done.returncode != 0
    assert "LaunchError: Open MPI's mpirun started 4 processes" in done.stderr, done.stderr
    assert "mpiexec" in done.stderr


def test_torchruns_variables_win_where_torchrun_started_the_process():
    variables = dict.fromkeys(torch_launch.TORCHRUN, "1")
    assert torch_launch.by_environment(variables)
    assert torch_launch.by_environment({"TORCHELASTIC_RUN_ID": "x", "SLURM_STEP_NUM_TASKS": "2"})
    assert not torch_launch.by_environment({**variables, "PMI_SIZE": "4"})  # mpirun in a pod that exports them
    assert not torch_launch.by_environment({"PMI_SIZE": "4"})
