"""Ranks that disagree, are late, die or are stopped: an error that says what and who, and a job that ends, not zero."""

import json

import pytest

from collectives.tables.table import Place, Rule, Table
from tests import conftest, launch

pytestmark = pytest.mark.mpi
SOON = 60  # seconds: a guard against hangs, on a busy machine
MISMATCHES = {
    "count": "count",
    "count after many calls": "count",
    "small count": "count",
    "count of a ring": "count",
    "nothing": "count",
    "dtype": "dtype",
    "dtype of one size": "dtype",
    "op": "op",
    "collective": "collective",
    "barrier for a sum": "collective",
    "root": "root",
    "broadcast of another count": "count",
    "algorithm": "algorithm",
    "parameters": "parameters",
    "precision": "dtype",
    "straddling": "count",
    "one call less": "collective",
    "counts or none": "collective",
}
VALUES = {
    "count": ("409600", "409598"),
    "dtype": ("float32", "bfloat16"),
    "op": ("sum", "max"),
    "collective": ("allreduce", "broadcast"),
    "root": ("0", "1"),
    "algorithm": ("ring", "recursive_doubling"),
    "counts or none": ("alltoall", "counts of an alltoall"),
}
MEETINGS = ("empty", "register", "split")
ONES = {"TREERING_RANKS_PER_NODE": "1"}  # every rank is a node
# Between nodes, what a rank that does not wait has called is known only by what it calls next.
BETWEEN_NODES = {**MISMATCHES, "nothing": None, "root": "an earlier call", "broadcast of another count": None}


@pytest.fixture(autouse=True)
def nothing_left():
    before = conftest.ours_in_shared_memory()
    yield
    assert not conftest.left_behind(before), "left in shared memory"


def outcomes(mpi, ranks, *cases, env=None):
    """What every rank saw, by case; afterwards the job has ended, not zero, since communicators are broken."""
    done = mpi.run(ranks, ["-m", "tests.programs.failures", *cases], timeout=120, env=env)
    said = launch.describe(done.args, done.returncode, done.stdout, done.stderr)
    line = next((line for line in done.stdout.splitlines() if line.startswith("{")), None)
    assert line is not None, said
    assert "outlived" not in done.stderr, said
    return json.loads(line), done


def fails_at_once(seen):
    return seen["type"] == "CommunicatorBroken" and seen["seconds"] < SOON / 10


@pytest.mark.parametrize(
    "mpi, ranks, env",
    [
        ("mpich", 2, {}),
        ("mpich", 3, {"TREERING_LINKS": "mpi"}),
        ("openmpi", 3, {"TREERING_KERNELS": "off"}),
        ("impi", 2, {"TREERING_LINKS": "mpi"}),
        ("store", 3, {}),
    ],
    indirect=["mpi"],
    ids=str,
)
def test_ranks_that_call_something_else_are_named_on_every_rank(mpi, ranks, env):
    seen, done = outcomes(mpi, ranks, *MISMATCHES, "counts", env=env)
    assert done.returncode != 0
    assert "leaves after" in done.stderr
    first, *others, last = seen["counts"]
    for one in (first, last):  # both ends of the message that differs; the others are stopped
        assert (one["type"], one["field"], one["ranks"]) == ("MismatchError", "counts", [0, ranks - 1]), one
        assert one["values"] == [f"1 as send_counts[{ranks - 1}]", "2 as recv_counts[0]"]
        assert fails_at_once(one["barrier"])
    assert all(one["type"] in ("CollectiveError", "MismatchError") for one in others), others
    for case, field in MISMATCHES.items():
        for rank, one in enumerate(seen[case]):
            assert one["type"] == "MismatchError", (case, rank, one)
            assert one["field"] == field, (case, rank, one)
            assert one["ranks"] == list(range(ranks)), (case, rank, one)
            usual, other = VALUES.get(case, (one["values"][0], one["values"][-1]))
            assert one["values"] == [usual] * (ranks - 1) + [other], (case, rank, one)
            assert usual != other
            assert f"ranks disagree on {field} (rank 0: {usual}, " in one["text"], (case, rank, one)
            assert f"rank {ranks - 1}: {other}); all ranks" in one["text"], (case, rank, one)
            assert fails_at_once(one["later"]), (case, rank, one)
            assert fails_at_once(one["barrier"]), (case, rank, one)
            assert one["seconds"] < SOON
            if case == "straddling":
                assert len(set(one["algorithms"])) == 2, one


@pytest.mark.parametrize("env", [{}, ONES], ids=str)
def test_equal_calls_from_different_places_are_told_apart_where_that_is_asked_for(mpich, env):
    seen, _ = outcomes(mpich, 2, "call site", env={"TREERING_DEBUG": "1", **env})
    for one in seen["call site"]:
        assert one["type"] == "MismatchError", one
        assert one["field"] == "call site"
        lines = [value.removeprefix("programs/failures.py:") for value in one["values"]]
        assert int(lines[1]) == int(lines[0]) + 1


@pytest.mark.full
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"], indirect=True)
def test_nodes_that_call_something_else_are_named_on_every_node(mpi):
    cases = {case: field for case, field in BETWEEN_NODES.items() if field or mpi.name == "mpich"}
    seen, done = outcomes(mpi, 2, *cases, env=ONES)
    assert done.returncode != 0
    for case, field in cases.items():
        for rank, one in enumerate(seen[case]):
            assert one["type"] == ("MismatchError" if field else "CollectiveTimeout"), (case, rank, one)
            assert field is None or f"ranks disagree on {field} (rank 0: " in one["text"], (case, rank, one)
            assert fails_at_once(one["barrier"]), (case, rank, one)


def test_what_nodes_tell_each_other_has_been_read_when_they_part(mpich):
    mpich(4, "parting", env={"TREERING_RANKS_PER_NODE": "2"})


@pytest.mark.full
def test_one_rank_of_one_node_stops_all_nodes(mpich):
    seen, done = outcomes(mpich, 4, "count", "op", "late", env={"TREERING_RANKS_PER_NODE": "2"})
    assert done.returncode != 0
    for case in ("count", "op"):
        assert [one["type"] for one in seen[case][2:]] == ["MismatchError"] * 2
        assert all("CollectiveError" in (one["type"], one["later"]["type"]) for one in seen[case][:2]), seen[case]
        assert "rank 2 disagreed" in seen[case][0]["text"] + seen[case][0]["later"]["text"]
    assert all(fails_at_once(one["barrier"]) for case in seen.values() for one in case)


def check_late(case, seen, nodes):
    waited, late = seen[case]
    assert waited["type"] == "CollectiveTimeout", (case, waited)
    said = ["rank 0: allreduce sum of 1000 float32 by ", "not done after", "timeout= or TREERING_TIMEOUT"]
    said.append("at a receive from rank 1" if nodes else "rank 1 has made")
    assert all(words in waited["text"] for words in said), (case, waited)
    assert "rank 0 passed its deadline" in late["text"] + late["later"]["text"], (case, late)
    assert fails_at_once(waited["later"])
    assert fails_at_once(late["barrier"])


def check_interrupt(case, seen):
    stopped, other = seen[case]
    assert stopped["type"] == "KeyboardInterrupt", (case, stopped)
    assert "interrupted while a collective was running" in stopped["later"]["text"]
    assert "rank 0 was interrupted" in other["text"] + other["later"]["text"], (case, other)
    assert fails_at_once(stopped["later"])
    assert fails_at_once(other["barrier"])


def check_crossed(seen):
    """Each rank names the group that it waits in."""
    for rank, one in enumerate(seen["crossed"]):
        assert one["type"] == "CollectiveTimeout"
        assert f"rank {rank}: allreduce sum of 20 float32" in one["text"]
        assert fails_at_once(one["later"])


@pytest.mark.full
@pytest.mark.parametrize("mpi", ["mpich", "openmpi", "impi", "store"], indirect=True)
def test_who_does_not_come_to_what_is_no_call_is_named_too(mpi):
    seen, done = outcomes(mpi, 2, *(f"late to {doing}" for doing in MEETINGS))
    assert done.returncode != 0
    for doing in MEETINGS:
        waited, late = seen[f"late to {doing}"]
        assert waited["type"] == "CollectiveTimeout", waited
        assert waited["text"].startswith(f"{doing}: rank 0: "), waited
        assert "rank 1 did not come" in waited["text"]
        assert late["type"] == "PeerLost", late
        assert "rank 0 passed its deadline" in late["text"]
        for one in (waited, late):
            assert one["seconds"] < SOON
            assert fails_at_once(one["later"])


def test_deadlines_and_interrupts(mpich):
    interrupts = ("interrupt", "interrupt of a wait", "interrupt at once")
    cases = ("late", "late for this call", "impatient", "crossed", "abandoned", *interrupts, "closed")
    missing = "missing where memory is made"
    seen, done = outcomes(mpich, 2, *cases, missing)
    assert done.returncode != 0
    for case in ("late", "late for this call"):
        check_late(case, seen, nodes=False)
    assert "not done after 1.0 s" in seen["late for this call"][0]["text"]
    patient = seen["impatient"]
    assert patient[0]["type"] == "CollectiveTimeout"
    assert "is not done after 0.2 s" in patient[0]["text"]
    assert [one["right"] for one in patient] == [True, True]
    check_crossed(seen)
    assert {one["type"] for one in seen[missing]} <= {"CollectiveTimeout", "CollectiveError", "PeerLost"}
    assert all(fails_at_once(one["barrier"]) for one in seen[missing])
    assert seen["abandoned"][0]["type"] == "CollectiveTimeout"
    for case in interrupts:
        check_interrupt(case, seen)
    for calls in seen["closed"]:
        assert {call["text"] for call in calls.values()} == {"this communicator is closed; make another one"}


@pytest.mark.full
def test_deadlines_and_interrupts_between_nodes(mpich):
    seen, done = outcomes(mpich, 2, "late", "crossed", "interrupt", env=ONES)
    assert done.returncode != 0
    check_late("late", seen, nodes=True)
    check_crossed(seen)
    check_interrupt("interrupt", seen)


def test_settings_that_differ_stop_all_ranks_at_start(mpich, tmp_path):
    place = Place(nodes=1, ranks_per_node=[2], fingerprint="elsewhere")
    rule = Rule(collective="allreduce", min_bytes=0, max_bytes=None, algorithm="ring")
    Table(treering="0", created="2026-01-01", topology=place, rules=[rule]).save(tmp_path / "t.json")
    cases = ("algorithm setting", "timeout setting", "table on one rank")
    alone = ("no such table", "no such algorithm")
    seen, done = outcomes(mpich, 3, *cases, *alone, env={"TREERING_TEST_TABLE": str(tmp_path / "t.json")})
    assert done.returncode == 0  # another communicator has served since
    said = {
        "algorithm setting": "TREERING_ALGORITHM) (rank 0: none, rank 1: none, rank 2: allreduce=ring",
        "timeout setting": "timeout (argument or TREERING_TIMEOUT) (rank 0: 2 s, rank 1: 2 s, rank 2: 77 s)",
        "table on one rank": f"(rank 0: none, rank 1: none, rank 2: table {tmp_path}/t.json with digest ",
    }
    for case, text in said.items():
        for one in seen[case]:
            assert one["type"] == "MismatchError"
            assert text in one["text"], (case, one)
    for case, kind, text in (
        ("no such table", "TableError", "/nowhere/table.json: No such file or directory"),
        ("no such algorithm", "ValueError", "no algorithm called 'rong'; it has: ring, "),
    ):
        assert [one["type"] for one in seen[case]] == ["CollectiveError", "CollectiveError", kind]
        assert all(text in one["text"] for one in seen[case]), seen[case]
        assert "rank 2 cannot start: " in seen[case][0]["text"]
    assert all(one["right"] for case in seen.values() for one in case)


@pytest.mark.parametrize(
    "way, says",
    [
        ("raise", "rank 2 leaves after ArithmeticError: the last rank exploded"),
        ("kill", ""),  # launchers end the others before these can speak
        ("exit", "PeerLost: rank "),
        ("end", "rank 2 has ended without making this call"),
        ("sleep", "CollectiveTimeout: rank "),
        ("abort", "rank 2 aborts: the last rank has seen enough"),
        ("differ", "disagree on count (rank 0: 1000, rank 1: 1000, rank 2: 5)"),
        ("interrupt", "rank 0 leaves after interrupted while a collective was running"),
    ],
)
def test_a_rank_that_goes_wrong_ends_the_job(mpich, way, says):
    ends(mpich.run(3, ["-m", "tests.programs.engine_stops", way], timeout=SOON), says)


@pytest.mark.parametrize("mpi", ["openmpi", "impi"], indirect=True)
@pytest.mark.parametrize(
    "way, says", [("raise", "leaves after ArithmeticError"), ("kill", ""), ("sleep", "CollectiveTimeout: rank ")]
)
def test_every_launcher_ends_the_job(mpi, way, says):
    ends(mpi.run(3, ["-m", "tests.programs.engine_stops", way], timeout=SOON), says)


@pytest.mark.parametrize("way", ["kill", "kill symmetric", "kill inside", "kill inside, copying"])
def test_survivors_of_a_killed_rank_are_told(way):
    """Where the launcher lets them live."""
    library = launch.find("openmpi")
    if library is None:
        pytest.skip("needs Open MPI")
    way, *memory = way.split(" symmetric")
    command = library.command(3, ["-m", "tests.programs.engine_stops", way, *(["symmetric"] if memory else [])])
    command.insert(1, "--enable-recovery")
    ends(launch.run_command(command, library.environment(), timeout=SOON), "rank 2 has ended; see its own output")


def ends(done, says):
    said = launch.describe(done.args, done.returncode, done.stdout, done.stderr)
    assert done.returncode != 0, said
    assert "came to the end" not in done.stdout, said
    assert "outlived" not in done.stderr, said
    assert says in done.stderr, said
