"""Threads of a rank, its forked children, and others who use MPI in its process: served, or told."""

import json

import pytest

from tests import launch

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("mpi, env", [("mpich", {"TREERING_LINKS": "mpi"}), ("store", {})], indirect=["mpi"], ids=str)
def test_threads_on_one_communicator_take_turns_or_are_told(mpi, env):
    done = mpi.run(3, ["-m", "tests.programs.guests", "threads"], env=env)
    said = launch.describe(done.args, done.returncode, done.stdout, done.stderr)
    assert done.stdout.startswith("{"), said
    found = json.loads(done.stdout.splitlines()[0])
    assert found["equal"] == found["in turn"] == [""] * 3, said
    assert all("ranks disagree on count (rank 0: 100, rank 1: 100, rank 2: 101)" in one for one in found["out of turn"])
    assert done.returncode != 0, said  # a communicator is broken


@pytest.mark.parametrize("mpi, level, env", [
    ("mpich", "single", {"TREERING_LINKS": "mpi"}), ("openmpi", "funneled", {}), ("impi", "serialized", {}),
], indirect=["mpi"], ids=str)  # fmt: skip
def test_other_threads_and_children_are_told_what_they_may_not_use(mpi, level, env):
    done = mpi.run(2, ["-m", "tests.programs.guests", "level", level], env=env)
    said = launch.describe(done.args, done.returncode, done.stdout, done.stderr)
    assert done.returncode == 0, said  # children's ends, in order and not zero, disturb nobody
    found = json.loads(done.stdout)
    assert found["main thread"] == found["afterwards"] == [True] * 2
    told = [each for one in found["thread"] for each in one]
    assert len(told) == 8
    assert all(each.startswith("UnsupportedError: MPI was initialised for calls from") for each in told), told
    for case in ("call", "plan", "work"):
        for text, status in found[f"child's {case}"]:
            assert status == 3
            assert text.startswith("CommunicatorBroken: process "), said
            assert "a rank, which alone may use this communicator; start children before" in text
    assert all(text.startswith("LaunchError: this process was forked") for text, _ in found["child's new"])


def test_mpi_belongs_to_others_too(mpich):
    """Who initialise it at a time of their own, and finalise it."""
    found = json.loads(mpich(2, "guests", "others").stdout)
    assert found["between"] == [True]
    assert found["before"][0].startswith("LaunchError: MPI is not initialised, since mpi4py.rc.initialize is off")
    assert found["new"][0].startswith("LaunchError: MPI has been finalised in this process")
    for case in ("after", "plan"):
        assert found[case][0].startswith("CommunicatorBroken: MPI has been finalised: close communicators before")
