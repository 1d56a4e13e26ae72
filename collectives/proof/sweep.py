"""Proves every algorithm at once: numbers of ranks, shapes of nodes, roots and settings; on several processors."""

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, product
from multiprocessing import get_context
from typing import Any, NamedTuple

from collectives import draw, nest
from collectives.algorithms import SEGMENT_BYTES, SLOTS, Algorithm, every, find, names
from collectives.contract import ROOTED, Contract, contract
from collectives.nest import Nest, shape
from collectives.proof.rendezvous import Fault
from collectives.schedule import Schedule
from collectives.verify import Report, check_cells, verify

SEGMENTED_RANKS = 17  # up to which pipelines are also run for more segments than they have slots
NESTED_RANKS = 17  # up to which compositions of algorithms are proved for more than their first setting
COLLECTED = 200_000  # objects made between two searches for what is no longer used
CHUNK = 4  # cases that a process takes at once


SHAPES = (
    *map(shape, ("2x2", "2x3", "2x4", "2x8", "3x2", "3x3", "3x4", "4x2", "4x4", "4x8", "8x2", "8x8")),
    *map(shape, ("3+1", "1+4", "2+3+2", "5+3+1", "7+1+1", "4+4+2")),
    [[0, 2, 4], [1, 3]],
    [[0, 3, 5], [6, 1], [2, 4]],
)
DEEPER = (
    *map(shape, ("2x2x2", "2x2x3", "3x2x2", "2x3x4", "4x4x4", "2x2x2x2", "(2+1)+(1x3)", "(2+1)+(3+1)+(1+1)")),
    [[[6, 0], [3]], [[1, 4, 2]], [[5]]],
)  # for algorithms that take groups of groups
EVERY_SHAPE = (*SHAPES, *DEEPER)


class Case(NamedTuple):
    """One algorithm on one group; its pipeline too, where it has one."""

    collective: str
    algorithm: str
    ranks: int
    nodes: Nest | None
    root: int | None
    params: Mapping[str, Any]

    @property
    def promise(self) -> Contract:
        return contract(self.collective, self.ranks, self.root or 0)

    def schedules(self, **more: Any) -> list[Schedule]:
        found = find(self.collective, self.algorithm)
        return found.schedules(self.ranks, nodes=self.nodes, root=self.root or 0, **self.params, **more)


def prove(
    collective: str | None = None,
    ranks: Iterable[int] = range(1, 18),
    shapes: Iterable[Nest] = EVERY_SHAPE,
    algorithms: Iterable[str] | None = None,
    jobs: int = 1,
) -> Iterator[dict[str, Any]]:
    """Proves what is registered, one row for each algorithm, number of ranks, shape of nodes, root and setting.

    Algorithms that take nodes are proved for the shapes, and for each number of ranks in nodes of four, the last one
    smaller; for shapes of more levels those that take groups of groups. On many ranks these are proved for their
    first setting alone. `bytes_sent` is by the rank that sends most, in lengths of the message. `order` is "fixed"
    where every result is folded in rank order, else "any". What an algorithm declares that it cannot serve is left
    out. jobs: how many processes share the work. ValueError for a name that is not there.
    """
    found = cases(collective, ranks, shapes, algorithms)
    if jobs == 1:
        yield from chain.from_iterable(map(rows, found))
        return
    # Forked, so that a process knows what has been registered here; proofs make much that lives as long as they do.
    with get_context("fork").Pool(jobs, gc.set_threshold, (COLLECTED,)) as pool:
        yield from chain.from_iterable(pool.imap(rows, found, CHUNK))


def cases(
    collective: str | None, ranks: Iterable[int], shapes: Iterable[Nest], algorithms: Iterable[str] | None
) -> list[Case]:
    """Algorithm by algorithm."""
    found, sizes, nodes = every(collective), list(ranks), list(shapes)
    there = dict.fromkeys(names(collective) if collective else (a.name for a in found))
    wanted = set(there if algorithms is None else algorithms)
    if unknown := sorted(wanted - there.keys()):
        raise ValueError(f"no algorithm is called {', '.join(unknown)}; there are {', '.join(there)}")
    fours = [[list(range(i, min(i + 4, p))) for i in range(0, p, 4)] for p in sizes]

    def groups(a: Algorithm) -> list[tuple[int, Nest | None]]:
        if not a.needs_nodes:
            return [(p, None) for p in sizes]
        return [(nest.count(x), x) for x in fours + nodes if a.nested or len(nest.levels(x)) == 2]

    return [
        Case(a.collective, a.name, p, x, root, params)
        for a in found
        if a.name in wanted
        for p, x in groups(a)
        if not a.refusal(p, x)
        for root in (sorted({0, p // 2, p - 1}) if a.collective in ROOTED else [None])
        for params in (plain(a) if p <= NESTED_RANKS or not a.nested else islice(plain(a), 1))
    ]


def plain(a: Algorithm) -> Iterator[dict[str, Any]]:
    """Every choice of the parameters that make its schedule, without a pipeline."""
    for values in product(*(parameter.choices for parameter in a.own)):
        yield dict(zip((parameter.name for parameter in a.own), values, strict=True))


PIPELINE = {SEGMENT_BYTES.name: SEGMENT_BYTES.choices[-1], SLOTS.name: SLOTS.choices[0]}


def settings(a: Algorithm) -> Iterator[dict[str, Any]]:
    """Every choice of the parameters that make its schedule, plain and as a pipeline."""
    for params in plain(a):
        yield from (params, params | PIPELINE) if a.pipelined else (params,)


def rows(case: Case) -> list[dict[str, Any]]:
    """What is found of a case, plain and as a pipeline."""
    schedules, promise = case.schedules(), case.promise
    report = proof(schedules, promise, 1)
    found = [row(case, {}, report)]
    if find(case.collective, case.algorithm).pipelined:
        piped = case.schedules(**PIPELINE)
        alike = isinstance(report, Report) and rounds(schedules) == rounds(piped)
        if alike and case.ranks > SEGMENTED_RANKS:  # of rounds that are proved, cells say all: segments share nothing
            found.append(row(case, PIPELINE, sound(piped, promise) or report))
        else:
            found.append(row(case, PIPELINE, proof(piped, promise, SLOTS.choices[0] + 1)))
    return found


def proof(schedules: Sequence[Schedule], promise: Contract, segments: int) -> Report | Fault:
    try:
        return verify(schedules, promise, segments)
    except Fault as fault:
        return fault


def sound(schedules: Sequence[Schedule], promise: Contract) -> Fault | None:
    """What is wrong with pipelines' cells."""
    try:
        check_cells(schedules, promise)
    except Fault as fault:
        return fault
    return None


def rounds(schedules: Sequence[Schedule]) -> list[Any]:
    """Without cells and slots."""
    return [[{i: x.rounds for i, x in phase.lanes.items()} for phase in schedule.phases] for schedule in schedules]


def row(case: Case, more: Mapping[str, Any], found: Report | Fault) -> dict[str, Any]:
    told = case._asdict() | {"params": {**case.params, **more}}
    if isinstance(found, Fault):
        nothing = dict.fromkeys(("rounds", "bytes_sent", "order", "hash"))
        return told | {"ok": False, "error": str(found), "exchange": draw.exchange(found)} | nothing
    order = "fixed" if found.canonical else "any"
    cost = {"rounds": found.rounds, "bytes_sent": float(found.sent), "order": order, "hash": found.hash}
    return told | {"ok": True, "error": None, "exchange": None} | cost
