"""The PyTorch door: parity with plain DDP, refusals, the way out, and process groups without MASTER_ADDR."""

import json
from itertools import pairwise

import msgspec
import pytest

from collectives import timeline
from collectives.tables.table import load
from integrations import torch_launch
from tests import launch

pytestmark = pytest.mark.mpi
FULL = pytest.mark.full
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


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=FULL), 2, pytest.param(4, marks=FULL)])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_plain_ddp(mpich, parity, ranks, case):
    if ranks not in parity:
        parity[ranks] = {}
        parity[ranks] = lines(mpich(ranks, "ddp_parity", timeout=240).stdout)
        assert tuple(parity[ranks]) == CASES
    assert case in parity[ranks], "the launch failed"
    assert parity[ranks][case]["wrong"] == []


@pytest.mark.parametrize("mpi", ["openmpi", "impi"], indirect=True)
def test_parity_on_the_other_mpi_libraries(mpi):
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


def check_that_it_ends(ranks, cause, *way):
    done = ranks.run(2, ["-m", "tests.programs.ddp_stops", *way])
    said = launch.describe(done.args, done.returncode, done.stdout, done.stderr)
    assert done.returncode != 0, said
    assert cause in done.stderr, said
    assert "trained to the end" not in done.stdout, said


def test_a_rank_that_raises_in_backward_ends_the_job(mpi):
    check_that_it_ends(mpi, "ArithmeticError: the loss exploded on rank 1", "raise")


@pytest.mark.parametrize(
    "way, cause",
    [
        pytest.param("sleep", "CollectiveTimeout", marks=FULL),
        pytest.param("differ", "MismatchError", marks=FULL),
        ("die", ""),  # which survivor gets to speak is the launcher's choice
        ("sleep thread", "CollectiveTimeout"),
        pytest.param("raise thread", "ArithmeticError: the loss exploded on rank 1", marks=FULL),
    ],
)
def test_training_that_goes_wrong_ends_the_job(mpich, way, cause):
    check_that_it_ends(mpich, cause, *way.split())


def test_workers_of_data_loaders_never_initialise_mpi(mpich):
    """Forked and spawned; and the ranks end by themselves with their helper threads at work."""
    found = json.loads(mpich(2, "ddp_workers").stdout)
    assert found == {way: [[1.5] * 4, [False, False]] for way in ("spawn", "fork")}


@pytest.mark.full
def test_tune_advises_a_bucket_size(mpich, tmp_path):
    table = tmp_path / "table.json"
    arguments = ("--ddp", "tests.programs.ddp_factory:make", "--budget", "2s", "--output", str(table), "--json")
    refuse_to_pickle = {"MPI4PY_PICKLE_PROTOCOL": "99"}
    done = mpich.run(2, ["-m", "tuner.cli", "tune", *arguments], env={"OMP_NUM_THREADS": "1", **refuse_to_pickle})
    assert done.returncode == 0, done.stderr
    (advice,) = load(table).ddp
    assert msgspec.to_builtins(advice) == json.loads(done.stdout)
    assert [way.bucket_cap_mb for way in advice.measured[:2]] == [None, 1.0]
    assert [sum(way.buckets) for way in advice.measured] == [4 * (512 * 512 + 512) * 3] * len(advice.measured)
    assert advice.measured[0].over_default == 1


@pytest.mark.full
def test_state_resumes_at_another_number_of_ranks_and_the_timeline_has_every_call(mpich, tmp_path):
    mpich(2, "ddp_checkpoint", "save", tmp_path / "state.pickle")
    mpich(3, "ddp_checkpoint", "resume", tmp_path / "state.pickle", env={"TREERING_TIMELINE": tmp_path / "trace.json"})
    files = [tmp_path / f"trace.{rank}.json" for rank in range(3)]
    events = [[event for event in json.loads(file.read_text()) if event["ph"] == "X"] for file in files]
    calls = [[(event["name"], event["args"]["bytes"]) for event in each] for each in events]
    assert calls[0] == calls[1] == calls[2]
    assert ("allreduce one_shot", 80) in calls[0]  # the bucket
    assert ("barrier", 0) in calls[0]  # the program's own
    for rank, each in enumerate(events):
        assert all(event["pid"] == rank and event["dur"] > 0 and event["args"]["waited_us"] >= 0 for event in each)
        assert all(before["ts"] + before["dur"] <= after["ts"] for before, after in pairwise(each))
        bucket = next(event for event in each if event["args"]["bytes"] == 80)
        assert bucket["args"]["dtype"] == "float32"
        assert "one_shot" in bucket["args"]["reason"]
    assert len(timeline.merged(list(map(str, files)))) == sum(len(json.loads(file.read_text())) for file in files)


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
    assert torch_launch.by_mpi({**variables, "PMI_SIZE": "4"})
    assert not torch_launch.by_mpi({"TORCHELASTIC_RUN_ID": "x", "PMI_SIZE": "4"})  # torchrun once a host
