"""A few of the cases of which `python -m tests.programs.fuzz` and `tests.programs.inject` run thousands."""

import json

import pytest

from tests import launch

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("mpi, ranks, cases", [("mpich", 3, 100), ("store", 4, 40)], indirect=["mpi"], ids=str)
def test_calls_drawn_at_random(mpi, ranks, cases):
    found = json.loads(mpi(ranks, "fuzz", "--rank", "--cases", cases).stdout)
    assert found["wrong"] == ""
    assert found["cases"] >= cases


@pytest.mark.parametrize("mpi, faults", [
    ("store", {"kill": 8, "stop": 6, "delay": 2, "raise": 4, "drop": 4}),
    ("mpich", {"kill": 1, "stop": 1, "drop": 1}),
], indirect=["mpi"], ids=str)  # fmt: skip
def test_a_rank_that_goes_wrong_anywhere_ends_the_job_and_gives_no_wrong_value(mpi, faults):
    flags = [part for fault, n in faults.items() for part in (f"--{fault}s", str(n))]
    library = launch.find("mpich")
    assert library is not None
    flags += [] if mpi.name == launch.STORE else ["--mpi", mpi.name]
    command = [library.python, "-m", "tests.programs.inject", *flags]
    done = launch.run_command(command, library.environment(), timeout=240)
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    if mpi.name == launch.STORE:
        assert found["struck"] == faults
