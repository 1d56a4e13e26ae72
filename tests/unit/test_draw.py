"""Pictures: what is drawn is what the schedule says."""

import re

import pytest

from collectives.algorithms import every, find
from collectives.draw import text
from collectives.nest import shape
from collectives.schedule import WHOLE, Group, collect, recv_reduce, send
from collectives.verify import Fault

RING = """\
ring
[x] > r  to rank r      [x] < r  from rank r      [x] + r  from rank r, and folded
x counts thirds of the message

         rank 0   rank 1   rank 2
round 0  [2] > 1  [0] > 2  [1] > 0
         [1] + 2  [2] + 0  [0] + 1
round 1  [1] > 1  [2] > 2  [0] > 0
         [0] + 2  [1] + 0  [2] + 1
round 2  [0] > 1  [1] > 2  [2] > 0
         [2] < 2  [0] < 0  [1] < 1
round 3  [2] > 1  [0] > 2  [1] > 0
         [1] < 2  [2] < 0  [0] < 1
"""


def test_a_ring():
    assert text(find("allreduce", "ring").schedules(3), "ring") == RING


def test_both_ends_of_a_message_are_in_one_row():
    lines = text(find("allreduce", "binomial_tree").schedules(6)).splitlines()
    assert [" ".join(line.split()) for line in lines[2:]] == [
        "rank 0 rank 1 rank 2 rank 3 rank 4 rank 5",
        "round 0 [all] + 1 [all] > 0 [all] + 3 [all] > 2 [all] + 5 [all] > 4",
        "round 1 [all] + 2,4 [all] > 0 [all] > 0",
        "round 2 [all] > 1,2,4 [all] < 0 [all] < 0 [all] < 0",
        "round 3 [all] > 3 [all] < 2 [all] > 5 [all] < 4",
    ]
    assert lines[4].index("[all] > 0", 20) == lines[2].index("rank 2")


@pytest.mark.parametrize("p", [1, 6, 8])
@pytest.mark.parametrize("algorithm", every(), ids=lambda a: f"{a.collective}-{a.name}")
def test_draws_every_message_twice(algorithm, p):
    each = 2 if algorithm.regular else 4
    nodes = [list(range(i, min(i + each, p))) for i in range(0, p, each)] if algorithm.needs_nodes else None
    schedules = algorithm.schedules(p, nodes=nodes)
    drawn = text(schedules)
    messages = sum(
        s.peer is not None
        for schedule in schedules
        for phase in schedule.phases
        for lane in phase.lanes.values()
        for steps in lane.rounds
        for s in steps
    )
    listed = re.findall(r"\[[\w-]+\] [<>+] ([\d,-]+|others)", drawn)
    ends = [int(b or a) - int(a) + 1 for peers in listed for a, b in re.findall(r"(\d+)(?:-(\d+))?", peers)]
    assert sum(ends) + (p - 1) * listed.count("others") == messages
    assert drawn.count("rank ") >= p
    assert max(map(len, drawn.splitlines())) <= 17 * 30


def test_a_pipeline_and_copies_say_so():
    drawn = text(find("allgather", "ring").schedules(2, segment_bytes=1024, slots=3))
    assert "a pipeline of 3 slots: one segment is drawn" in drawn
    assert "[x] = b  copied from buffer b" in drawn
    assert "[0] = input" in drawn


def test_nothing_to_do():
    assert "nothing to do" in text(find("allreduce", "ring").schedules(1))


def test_what_deadlocks_is_not_drawn():
    def emit(g):
        yield [send(WHOLE, g[g.rank + 1])]
        yield [recv_reduce(WHOLE, g[g.rank + 1])]

    with pytest.raises(Fault, match="deadlock"):
        text([collect(emit(Group(range(2), me))) for me in range(2)])


def test_nodes_of_unequal_size_are_drawn_in_common_parts():
    drawn = text(find("allreduce", "hierarchical").schedules(5, nodes=shape("2+3")))
    assert (
        "x counts 12ths of the message" in drawn
    )  # thirds of one node, halves of the other, and halves of those pieces
    assert "[0-5] + 1" in drawn
    assert "[0-3] + 3,4" in drawn
