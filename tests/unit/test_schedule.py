"""Spans, groups, steps, folds, lanes: the words that algorithms are written in."""

from fractions import Fraction
from itertools import pairwise

import pytest

from collectives.contract import COLLECTIVES, contract
from collectives.schedule import (
    COPY,
    DATA,
    INPUT,
    OUTPUT,
    RECV,
    SCRATCH,
    SEND,
    WHOLE,
    Group,
    Lane,
    Phase,
    Span,
    Step,
    collect,
    copy,
    fold,
    folds,
    lane,
    mirror,
    recv,
    recv_reduce,
    send,
    there_and_back,
    together,
)


def span(lo, hi):
    return Span(Fraction(lo), Fraction(hi))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 1024])
def test_split_covers_the_span_in_equal_parts(n):
    parts = span("1/3", "5/7").split(n)
    assert (parts[0].lo, parts[-1].hi) == (Fraction("1/3"), Fraction("5/7"))
    assert all(a.hi == b.lo for a, b in pairwise(parts))
    assert {part.size for part in parts} == {Fraction("8/21") / n}


def test_spans_contain_overlap_and_hash_as_equal():
    low, high = WHOLE.split(2)
    assert low in WHOLE
    assert WHOLE not in low
    assert low in low
    assert not low.overlaps(high)
    assert low.overlaps(span("1/4", "3/4"))
    assert hash(low) == hash(span(0, "2/4"))
    assert {low: "found"}[span("0/1", "1/2")] == "found"
    assert str(low) == "[0, 1/2)"


def test_a_group_counts_around():
    g = Group([4, 2, 9], me=2)
    assert (g.size, g.rank, g[g.rank + 1], g[g.rank + 2], g[-1]) == (3, 1, 9, 4, 9)
    with pytest.raises(ValueError, match="rank 5 is not in the group"):
        Group([4, 2, 9], me=5)


def test_a_fold_leaves_the_place_of_my_own_operand_free():
    steps = fold(WHOLE, [3, 1, 2], me=1)
    assert [(s.peer, s.place) for s in steps] == [(3, 0), (2, 2)]
    assert list(folds(steps).values()) == [[steps[0], None, steps[1]]]


def test_a_fold_of_my_own_alone_is_a_copy_or_nothing():
    assert fold(WHOLE, [1], 1) == []
    assert fold(WHOLE, [1], 1, DATA, DATA) == []
    assert fold(WHOLE, [1], 1, OUTPUT, INPUT) == [copy(WHOLE, INPUT, OUTPUT)]


def test_folds_are_told_apart_by_target_and_own_operand():
    low, high = WHOLE.split(2)
    steps = [recv_reduce(low, 1), recv_reduce(high, 1), recv_reduce(low, 2, SCRATCH, DATA), copy(high, INPUT, OUTPUT)]
    found = folds([send(low, 1), recv(high, 1, OUTPUT), *steps])
    assert list(found.values()) == [[None, steps[0]], [None, steps[1]], [None, steps[2]], [None]]
    assert [own for _, _, _, own in found] == [DATA, DATA, DATA, INPUT]


def test_places_that_clash_leave_more_than_one_free():
    clash = [recv_reduce(WHOLE, 1), recv_reduce(WHOLE, 2)]
    assert next(iter(folds(clash).values())).count(None) == 2


def test_mirror_turns_a_reduction_into_its_broadcast():
    rounds = [[send(WHOLE, 1)], [recv_reduce(WHOLE, 2), send(WHOLE, 3)]]
    assert mirror(rounds) == [[send(WHOLE, 2), recv(WHOLE, 3)], [recv(WHOLE, 1)]]
    assert there_and_back(iter(rounds)) == rounds + mirror(rounds)
    assert mirror([[recv(WHOLE, 1)]]) == [[send(WHOLE, 1)]]  # what was moved comes back too
    with pytest.raises(ValueError, match="a copy has no mirror image"):
        mirror([[copy(WHOLE, INPUT, OUTPUT)]])


def test_together_merges_round_by_round():
    a, b = [[send(WHOLE, 1)], [recv(WHOLE, 1)]], [[send(WHOLE, 2)]]
    assert together(a, b) == [a[0] + b[0], a[1]]


def test_a_segment_is_the_same_part_of_every_cell():
    low, high = WHOLE.split(2)
    pipeline = lane([[send(low, 1), recv(high, 1)]], cells=[low, high], slots=2)
    assert pipeline.segment(low, 0, 4) == span(0, "1/8")
    assert pipeline.segment(high, 3, 4) == span("7/8", 1)
    whole = lane([[send(high, 1)]], cells=[WHOLE])
    assert whole.segment(high, 1, 2) == span("3/4", 1)  # the second half of the second half of the message


def test_collect_groups_rounds_between_phases_and_drops_what_is_empty():
    one, two = [send(WHOLE, 1)], [recv(WHOLE, 1)]
    beside = Phase({0: lane([one]), 3: lane([two]), 5: lane([[]])})
    parts: list[list[Step] | Phase] = [[], one, two, beside, [], Phase({0: lane([])}), one]
    schedule = collect(iter(parts))
    assert [dict(phase.lanes) for phase in schedule.phases] == [
        {0: Lane((tuple(one), tuple(two)))},
        {0: Lane((tuple(one),)), 3: Lane((tuple(two),))},
        {0: Lane((tuple(one),))},
    ]
    assert collect([]).phases == ()


@pytest.mark.parametrize("p", [1, 2, 5])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_contracts_promise_something_to_every_rank_that_has_a_result(collective, p):
    promise = contract(collective, p, root=p - 1)
    assert len(promise.before) == len(promise.after) == p
    assert all(owner in range(p) for held in promise.after for _, _, owners in held for owner in owners)
    receivers = [rank for rank, held in enumerate(promise.after) if held]
    assert receivers == ([p - 1] if collective in ("reduce", "gather") else list(range(p)))


def test_layouts_pack_what_a_rank_holds_in_order():
    assert contract("allgather", 3).layout(1) == {INPUT: [WHOLE.split(3)[1]], OUTPUT: list(WHOLE.split(3))}
    assert contract("allreduce", 3).layout(1) == {DATA: [WHOLE]}
    assert contract("reduce", 3, root=2).layout(1) == {INPUT: [WHOLE]}


def test_contracts_refuse_by_name():
    with pytest.raises(ValueError, match=r"no collective is called 'all_reduce'; there are allreduce, .*allgather"):
        contract("all_reduce", 4)
    with pytest.raises(ValueError, match="root 4 is not one of 4 ranks, 0 to 3"):
        contract("broadcast", 4, root=4)


def test_there_are_four_kinds_of_step():
    kinds = {s.kind for s in (send(WHOLE, 1), recv(WHOLE, 1), recv_reduce(WHOLE, 1), copy(WHOLE, INPUT, OUTPUT))}
    assert kinds == {SEND, RECV, "recv_reduce", COPY}
