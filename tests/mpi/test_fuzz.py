"""A few of the cases of which `python -m tests.programs.fuzz` and `tests.programs.inject` run thousands."""

import json

import pytest

from tests import launch

pytestmark = pytest.mark.mpi


@pytest.mark.full
def test_calls_drawn_at_random(mpich):
    found = json.loads(mpich(3, "fuzz", "--rank", "--cases", 120).stdout)
    assert found["wrong"] == ""
    assert found["cases"] >= 120


@pytest.mark.full
@pytest.mark.parametrize("mpi, faults", [
    ("store", {"kill": 2, "stop": 2, "delay": 1, "raise": 1, "drop": 1}),
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
