"""Nested: groups of groups of ranks, to any depth, and at each level any algorithm that is registered.

From the innermost level outwards, members of a group fold what they hold together; the outermost level does an
allreduce; then all levels go back as they came. A reduce_scatter leaves each member with its chunk, and all members
lead on; a reduce leaves everything with the first, and that one leads. Where groups differ in size their cuts differ,
and what lies between all of them has one owner in each group. Two racks, of nodes {0, 1}, {2, 3} and of a node {4}:

    nodes     | 0  | 1  |   | 2  | 3  |   |    4    |       halves, and rank 4 has all
    racks     |0  2|1  3|                 |    4    |       quarters: 0 and 2 shared the first half, 1 and 3 the other
    outermost {0, 4} {2, 4} {1, 4} {3, 4}                   an allreduce of each quarter, all of them together
"""

from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import TypeAlias

from collectives import nest
from collectives.algorithms.registry import Algorithm, every
from collectives.nest import Nest
from collectives.schedule import COPY, DATA, WHOLE, Group, Phase, Round, Span, mirror, together

ALL_LEAD, FIRST_LEADS, OUTERMOST = "reduce_scatter", "reduce", "allreduce"
Algorithms: TypeAlias = tuple[Algorithm, ...]
Held: TypeAlias = list[tuple[Span, int]]


def allreduce(g: Group, span: Span = WHOLE, nodes: Nest = (), levels: str = "direct:ring") -> Iterator[Round]:
    """Fold within innermost groups, then between them, and so on; allreduce between the outermost; and go back.

    `levels` names an algorithm for each level from the innermost outwards; the first serves all levels that lack one.
    Segments of a pipeline are at different levels at once.
    Cost: the sum over levels, each for the members of a group and what inner levels have left of n, of its
    reduce_scatter's or reduce's twice, without gamma the second time, and of the outermost level's allreduce's.
    Serves: any number of ranks, groups of any depth, uneven and in any order.
    Paper: Cho et al., BlueConnect: decomposing all-reduce for deep learning on heterogeneous network hierarchy, 2019.
    """
    groups = nest.around(nodes, g.me)
    algorithms = chosen(levels, len(groups))
    folds = [between(g.me, group, span, algorithms[: i + 1]) for i, group in enumerate(groups[:-1])]
    inwards = list(chain.from_iterable(folds))
    yield from inwards
    yield from between(g.me, groups[-1], span, algorithms)
    yield from mirror(inwards)


def between(me: int, group: Nest, span: Span, algorithms: Algorithms) -> list[Round]:
    """What a rank does between the members of its group, by the last algorithm, for all parts that it holds there."""
    *inner, last = algorithms
    if refusal := last.refusal(len(group)):
        raise ValueError(f"a level of {len(group)}: {refusal}")
    mine = [(part, owners) for part, owners in shared(group, span, tuple(inner)) if me in owners]
    found = [(part, list(rounds(last, Group(owners, me), part))) for part, owners in mine]
    if len(set(map(nest.count, group))) > 1:  # sums of some chunks weigh more than those of others
        return together(*(cut(steps, part.split(len(group))) for part, steps in found))
    return together(*(steps for _, steps in found))


@lru_cache(1024)  # asked for by every rank
def shared(group: Nest, span: Span, inner: Algorithms) -> list[tuple[Span, tuple[int, ...]]]:
    """The parts between the cuts of all members of a group, and for each part who holds it in each member."""
    members = [held(member, span, inner) for member in group]
    cuts = sorted({end for each in members for part, _ in each for end in part})

    def owner(each: Held, part: Span) -> int:
        return each[bisect(each, part.lo, key=lambda one: one[0].lo) - 1][1]

    parts = map(Span, cuts, cuts[1:])
    return [(part, tuple(owner(each, part) for each in members)) for part in parts]


def held(group: Nest | int, span: Span, algorithms: Algorithms) -> Held:
    """Parts of the message in order, and who holds a group's sum of each when it has folded by all these."""
    if isinstance(group, int):
        return [(span, group)]
    *inner, last = algorithms
    parts = shared(group, span, tuple(inner))
    if last.collective == FIRST_LEADS:
        return [(part, owners[0]) for part, owners in parts]
    return [one for part, owners in parts for one in zip(part.split(len(owners)), owners, strict=True)]


# What serves a level


def chosen(levels: str, depth: int) -> Algorithms:
    """From the innermost level outwards. ValueError for a name that no level could have, and for too many."""
    names = levels.split(":")
    if len(names) > depth:
        raise ValueError(f"levels={levels!r} names {len(names)} levels, and there are {depth}")
    *inner, outermost = names[:1] * (depth - len(names)) + names
    return (*(named(name, ALL_LEAD, FIRST_LEADS) for name in inner), named(outermost, OUTERMOST))


def named(name: str, *collectives: str) -> Algorithm:
    there = [a for collective in collectives for a in every(collective) if not a.needs_nodes]
    if found := next((a for a in there if a.name == name), None):
        return found
    names = ", ".join(dict.fromkeys(a.name for a in there))
    raise ValueError(f"no {' or '.join(collectives)} that can serve a level is called {name!r}; there are {names}")


def rounds(a: Algorithm, g: Group, span: Span) -> Iterator[Round]:
    """An algorithm's, on data alone: nobody needs what it had. Lanes come one after the other."""
    defaults = {parameter.name: parameter.default for parameter in a.own}
    for part in a.emit(g, span, **defaults):
        alone = [part] if not isinstance(part, Phase) else chain(*(lane.rounds for lane in part.lanes.values()))
        for steps in alone:
            yield [s._replace(buffer=DATA, own=s.own and DATA) for s in steps if s.kind != COPY]


def cut(rounds: Iterable[Round], chunks: Sequence[Span]) -> Iterator[Round]:
    """The same with every step within a chunk."""
    for steps in rounds:
        yield [
            s._replace(span=Span(max(s.span.lo, chunk.lo), min(s.span.hi, chunk.hi)))
            for s in steps
            for chunk in chunks
            if s.span.overlaps(chunk)
        ]
