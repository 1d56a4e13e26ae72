"""The verifier: what it refuses, by name; what it reports; what it proves for everybody."""

from fractions import Fraction

import pytest

from collectives.algorithms import Algorithm, every, find, registry
from collectives.contract import contract
from collectives.draw import exchange
from collectives.nest import name, shape
from collectives.proof import rendezvous
from collectives.proof.reference import Wrong, check
from collectives.proof.sweep import prove
from collectives.schedule import (
    DATA,
    INPUT,
    OUTPUT,
    SCRATCH,
    WHOLE,
    Group,
    Phase,
    collect,
    copy,
    fold,
    lane,
    mirror,
    recv,
    recv_reduce,
    send,
)
from collectives.verify import Fault, verify

LOW, HIGH = WHOLE.split(2)


def schedules(p, emit):
    return [collect(emit(Group(range(p), me))) for me in range(p)]


def swap(g, span=WHOLE):
    return [send(span, g[g.rank + 1]), recv_reduce(span, g[g.rank - 1])]


def scatter(g):
    half = WHOLE.split(2)
    return [[send(half[1 - g.rank], g[g.rank + 1]), recv_reduce(half[g.rank], g[g.rank + 1])]]


def beside(*lanes):
    return [Phase(dict(enumerate(lanes)))]


def everyone(g, order):
    return [send(WHOLE, to) for to in g.ranks if to != g.me] + fold(WHOLE, order, g.me)


def only(rank, *steps):
    return lambda g: list(steps) if g.me == rank else []


def pipelined_scratch(g):
    """What one segment leaves in scratch, the next phase must not find there."""
    into = lane([[copy(WHOLE, DATA, SCRATCH)]], [WHOLE])
    return [*beside(into), *beside(lane([[copy(WHOLE, SCRATCH, DATA)]], [WHOLE])), swap(g)]


REFUSED = {
    "messages never meet their other end": lambda g: [swap(g), only(0, send(WHOLE, 1))(g)],
    "1 messages never meet .*: rank 1 phase 0 lane 0 slot 0 round 1: recv scratch .* from 0": lambda g: [
        swap(g),
        only(1, recv(WHOLE, 0, SCRATCH))(g),
    ],
    "never meet .* to 7": lambda g: [swap(g), [send(WHOLE, 7)]],
    "deadlock: rank 0 .* to 1 waits for rank 1 .* from 0; rank 1 .* to 0 waits for rank 0": lambda g: [
        [step] for step in swap(g)
    ],
    "not the same span, cells and slots": lambda g: [swap(g, WHOLE.split(2)[g.rank])],
    "one reads what another writes": lambda g: [[send(WHOLE, g[g.rank + 1]), recv(WHOLE, g[g.rank - 1])]],
    "two steps write one place": lambda g: [
        [
            send(LOW, g[g.rank + 1]),
            send(WHOLE, g[g.rank + 1]),
            recv(LOW, g[g.rank + 1]),
            recv_reduce(WHOLE, g[g.rank + 1]),
        ]
    ],
    r"lane, slot\) \(0, 0\) and \(1, 0\) share a place": lambda g: beside(lane([swap(g)]), lane([swap(g)])),
    "share a place, and one of them writes it": lambda g: beside(
        lane([swap(g)]), lane([[send(LOW, g[g.rank + 1]), recv(LOW, g[g.rank + 1], SCRATCH)]])
    ),
    "cells overlap": lambda g: beside(lane([swap(g)], [WHOLE, LOW])),
    "no slots": lambda g: beside(lane([swap(g)], [WHOLE], slots=0)),
    "in none of its cells": lambda g: beside(lane([swap(g)], [LOW])),
    "cuts a cell": lambda g: [*scatter(g), *beside(lane(mirror(scatter(g)), [WHOLE]))],
    "same span, cells and slots": lambda g: beside(lane([swap(g)], [WHOLE], slots=1 + g.rank)),
    "nothing has been written to some of scratch": lambda g: [[copy(WHOLE, SCRATCH, DATA)], swap(g)],
    r"nothing has been written to some of scratch 1\.0\.0": pipelined_scratch,
    "counted twice": lambda g: [swap(g), swap(g)],
    "lacks contributions, or holds others": lambda g: [swap(g, LOW)],
    "output .* which is not to be written": lambda g: [[copy(WHOLE, DATA, OUTPUT)], swap(g)],
    "input .* which is not to be written": lambda g: [[copy(WHOLE, DATA, INPUT)], swap(g)],
    "to myself": lambda g: [swap(g), [send(WHOLE, g.me), recv(WHOLE, g.me, SCRATCH)]],
    "a copy with one": lambda g: [swap(g), [copy(WHOLE, DATA, SCRATCH)._replace(peer=1 - g.me)]],
    "different weights": lambda g: [[[send(LOW, 1)], [recv_reduce(LOW, 0)]][g.me], swap(g)],
}


@pytest.mark.parametrize("words", REFUSED)
def test_refuses_by_name_on_2_ranks(words):
    with pytest.raises(Fault, match=words):
        verify(schedules(2, REFUSED[words]), contract("allreduce", 2), segments=2)


THREE = {
    "lacks contributions": lambda g: [swap(g)],
    "is another reduction tree than elsewhere": lambda g: [everyone(g, [g[g.rank + i] for i in range(3)])],
    "places are not 0 to n with one left for my own": lambda g: [[s._replace(place=1) for s in everyone(g, g.ranks)]],
}


@pytest.mark.parametrize("words", THREE)
def test_refuses_by_name_on_3_ranks(words):
    with pytest.raises(Fault, match=words):
        verify(schedules(3, THREE[words]), contract("allreduce", 3))


def test_inputs_stay_as_they_are():
    def in_place(g):
        return [
            [
                send(WHOLE.split(2)[1 - g.rank], g[g.rank + 1], INPUT),
                recv_reduce(WHOLE.split(2)[g.rank], 1 - g.me, INPUT),
            ]
        ]

    with pytest.raises(Fault, match=r"writes input \[0, 1/2\), which is not to be written"):
        verify(schedules(2, in_place), contract("reduce_scatter", 2))


def test_a_fault_says_where():
    def emit(g):
        yield swap(g)
        wrong = [[copy(WHOLE, DATA, SCRATCH)], [send(WHOLE, 0), recv(WHOLE, 0)]]
        yield Phase({2: lane(wrong if g.rank else wrong[:1], [WHOLE], slots=2)})

    with pytest.raises(Fault, match=r"^rank 1 phase 1 lane 2 slot 0 round 1: two steps write one place, or one reads"):
        verify(schedules(2, emit), contract("allreduce", 2), segments=2)


# Deadlock where messages stream


def chained(g):
    """Rank 0 folds 1's and 2's data at once, but 2 sends only after hearing from 1, which it does after 1 has sent."""
    tell = [recv(WHOLE, 1, SCRATCH)] if g.me == 2 else [send(WHOLE, 2)]
    if g.me == 0:
        yield fold(WHOLE, g.ranks, 0)
    elif g.me == 1:
        yield from [[send(WHOLE, 0)], tell]
    else:
        yield from [tell, [send(WHOLE, 0)]]
    yield [send(WHOLE, 1), send(WHOLE, 2)] if g.me == 0 else [recv(WHOLE, 0)]


def crossed(g):
    """Rank 0 folds both halves from both others, which come in one order from 1 and in the other from 2."""
    halves = [LOW, HIGH] if g.me == 1 else [HIGH, LOW]
    if g.me == 0:
        low, high = fold(LOW, g.ranks, 0), fold(HIGH, g.ranks, 0)
        yield [low[0], high[0], high[1], low[1]]
    else:
        yield [send(half, 0) for half in halves]
    yield [send(WHOLE, 1), send(WHOLE, 2)] if g.me == 0 else [recv(WHOLE, 0)]


def overtaken(g):
    """Rank 0's first send must run ahead of the fold that overwrites what it reads: an executor may, but need not."""
    if g.me == 0:
        yield [send(WHOLE, 1), *fold(WHOLE, g.ranks, 0)]
        yield [send(WHOLE, 1), send(WHOLE, 2)]
    elif g.me == 1:
        yield [recv(WHOLE, 0, SCRATCH)]
        yield [send(WHOLE, 0), send(WHOLE, 2)]
        yield [recv(WHOLE, 0)]
    else:
        yield [recv(WHOLE, 1, SCRATCH)]
        yield [send(WHOLE, 0)]
        yield [recv(WHOLE, 0)]


STREAMING = {
    "deadlock: rank 1 .* to 0 waits for rank 2 .*, with which it streams; rank 2 .* waits for rank 1 .* to 2$": chained,
    "deadlock: .* are posted at both ends, but each comes behind another in its channel": crossed,
    "deadlock: rank . .* waits for rank .*, with which it streams": overtaken,
}


@pytest.mark.parametrize("words", STREAMING)
def test_refuses_what_only_deadlocks_when_messages_stream(words, monkeypatch):
    wrong = schedules(3, STREAMING[words])
    with pytest.raises(Fault, match=words):
        verify(wrong, contract("allreduce", 3))

    def apart(messages):
        """Plain rendezvous: a message needs nothing but its own two ends."""
        for m in messages:
            m.bundle.missing, m.behind = 2, None

    monkeypatch.setattr(rendezvous, "tie", apart)
    assert verify(wrong, contract("allreduce", 3)).canonical


@pytest.mark.parametrize("emit", [chained, crossed])
def test_it_does_hang_with_little_memory(emit):
    with pytest.raises(Wrong, match="nobody moves"):
        check(schedules(3, emit), contract("allreduce", 3), 12, segments=1, canonical=True, seed=1)


def test_one_channel_cannot_bring_two_messages_of_one_bundle_side_by_side():
    def halves(g):
        there = [send(LOW, 1), send(HIGH, 1), recv_reduce(WHOLE, 1)]
        return [there if g.me == 0 else [send(WHOLE, 0), recv(LOW, 0, SCRATCH), recv(HIGH, 0, SCRATCH)]]

    with pytest.raises(Fault, match="folded side by side, but one comes behind the other"):
        verify(schedules(2, halves), contract("allreduce", 2))


# Reports


def test_equal_trees_have_equal_hashes_whatever_the_algorithm():
    def report(name, p, segments=1, **params):
        return verify(find("allreduce", name).schedules(p, **params), contract("allreduce", p), segments)

    assert report("one_shot", 5).hash == report("two_shot", 5).hash
    assert report("one_shot", 5).hash != report("ring", 5).hash
    assert report("recursive_doubling", 2).hash == report("ring", 2).hash == report("one_shot", 2).hash
    assert report("ring", 5).hash == report("ring", 5, 4, segment_bytes=4096).hash
    assert report("ring", 5).hash != report("ring", 6).hash


def test_counts_of_a_report():
    report = verify(find("allreduce", "ring").schedules(4), contract("allreduce", 4))
    assert report[:5] == (6, 6, Fraction(3, 2), Fraction(3, 4), False)


def test_64_ranks():
    for algorithm in every():
        promise = contract(algorithm.collective, 64)
        verify(algorithm.schedules(64, nodes=shape("8x8") if algorithm.needs_nodes else None), promise)


# Everybody at once


def test_rows_name_the_case():
    (row,) = prove("allgather", ranks=[3], algorithms=["bruck"])
    assert row == {
        "collective": "allgather",
        "algorithm": "bruck",
        "ranks": 3,
        "nodes": None,
        "root": None,
        "params": {},
        "ok": True,
        "error": None,
        "exchange": None,
        "rounds": 2,
        "bytes_sent": pytest.approx(2 / 3),
        "order": "fixed",
        "hash": row["hash"],
    }


def test_rows_cover_roots_shapes_and_settings():
    rows = list(prove(ranks=[6], shapes=[shape("3+1")], algorithms=["binomial_tree", "hierarchical"]))
    assert {row["collective"] for row in rows} == {"allreduce", "reduce", "broadcast", "gather", "scatter"}
    assert {row["root"] for row in rows if row["collective"] == "reduce"} == {0, 3, 5}
    shapes = [row["nodes"] for row in rows if row["algorithm"] == "hierarchical"]
    assert all(nodes in ([[0, 1, 2], [3]], [[0, 1, 2, 3], [4, 5]]) for nodes in shapes)
    assert any("slots" in row["params"] for row in rows)
    assert {row["params"].get("leaders") for row in rows} == {None, "all", "one", 2}


def test_a_fault_is_a_row(monkeypatch):
    def half(g, span=WHOLE):
        yield swap(g, LOW)

    algorithms = {("allreduce", "half"): Algorithm("allreduce", "half", half, power_of_two=True)}
    monkeypatch.setattr(registry, "_registry", algorithms)
    (row,) = prove(ranks=[2, 3])
    assert (row["ok"], row["rounds"], row["hash"]) == (False, None, None)
    assert "lacks contributions" in row["error"]
    assert row["exchange"] == "rank 0, lane 0, round 0\ndata [0] > 1\ndata [0] + 1"


def test_a_fault_draws_the_exchange_that_it_is_about():
    with pytest.raises(Fault, match="not the same span") as caught:
        verify(schedules(2, lambda g: [swap(g, WHOLE.split(2)[g.rank])]), contract("allreduce", 2))
    assert exchange(caught.value).splitlines() == [
        "rank 0, lane 0, round 0  rank 1, lane 0, round 0",
        "data [0] > 1   <--       data [1] > 0",
        "data [0] + 1             data [1] + 0   <--",
    ]
    with pytest.raises(Fault, match="deadlock") as caught:
        verify(schedules(2, lambda g: [[step] for step in swap(g)]), contract("allreduce", 2))
    assert exchange(caught.value).count("<--") == 4


def test_prove_refuses_names_that_are_not_there():
    with pytest.raises(ValueError, match="no algorithm is called rings; there are ring, direct"):
        list(prove("reduce_scatter", algorithms=["ring", "rings"]))
    with pytest.raises(ValueError, match="no collective is called 'sum'"):
        list(prove("sum"))


def test_shapes():
    assert shape("2x3") == [[0, 1, 2], [3, 4, 5]]
    assert shape("3+1") == [[0, 1, 2], [3]]
    assert shape("5") == [[0, 1, 2, 3, 4]]
    assert shape("2x2x1") == [[[0], [1]], [[2], [3]]]
    assert shape("(2+1)+(1x3)") == [[[0, 1], [2]], [[3, 4, 5]]]
    for text in ("2x3", "3+1", "1x5", "2x2x3", "2x(2+1)", "(2x2)+(1x3)", "((1+2)+(3x1))+(1x(2+1))"):
        assert name(shape(text)) == text
    for wrong in ("", "2x", "0x3", "2x3+1", "(2x3", "99999999x9", "65x64", "3+", "a", "-1"):
        with pytest.raises(ValueError, match="is no shape of nodes: write 2x3"):
            shape(wrong)
