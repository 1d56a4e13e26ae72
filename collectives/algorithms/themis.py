"""Themis: groups in a grid, and parts of the message that go through its dimensions in different orders.

A dimension is a level of the groups: those ranks meet in it that are in one place in all others. Whichever comes first
moves whole parts, and the next one only the chunks that are left of them; so if all parts took one order, the links of
the first dimension would be busy and all others idle. Parts are small, and each goes first where the least has been
moved until then, by the time that it takes. Those of one order are a lane. Two nodes of four ranks, links of one speed:

    within, then between nodes    a rank sends 3/4 and then 1/8 of a part       11 of 64 parts
    between, then within nodes    1/2 and then 3/8                              53 of them
    in all                        28 parts along both dimensions, where in the first order alone it is 48 and 8
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import TypeAlias

from collectives import nest
from collectives.algorithms.nested import ALL_LEAD, named, rounds
from collectives.nest import Nest
from collectives.schedule import WHOLE, Group, Phase, Round, Span, lane, there_and_back

PARTS = 64
Order: TypeAlias = tuple[int, ...]  # dimensions, 0 the innermost


def allreduce(
    g: Group, span: Span = WHOLE, nodes: Nest = (), level: str = "direct", speeds: str | int = 1, slots: int = 0
) -> Iterator[Phase]:
    """Reduce-scatter through all dimensions of the grid and allgather backwards, in an order that balances their links.

    As many bytes as in one order for all, where links are free. `speeds` are a rank's links' from the innermost level
    outwards, as 8:4:1; a number r is how many times as fast each is as the next one out.
    Cost: the sum over dimensions of twice `level`'s alpha; 2 n (p-1)/p beta + n (p-1)/p gamma, which dimensions share.
    Serves: any number of ranks in groups of one size at each level.
    Paper: Rashidi et al., Themis: a network bandwidth-aware collective scheduling policy for distributed training of
    DL models, 2022.
    """
    sizes = tuple(len(groups[0]) for groups in reversed(nest.levels(nodes)))
    ranks, shares = nest.ranks(nodes), balanced(sizes, fast(speeds, len(sizes)))
    lanes = {}
    for number, (order, part) in enumerate(zip(shares, span.shares(list(shares.values())), strict=True)):
        there = through(order, sizes, ranks, g.me, part, level)
        lanes[number] = lane(there_and_back(there), [part] if slots else (), slots or 1)
    yield Phase(lanes)


def through(
    order: Order, sizes: Sequence[int], ranks: Sequence[int], me: int, span: Span, level: str
) -> Iterator[Round]:
    """Reduce-scatter along one dimension after the other, each of what the one before has left to me."""
    for dimension in order:
        stride, size = prod(sizes[:dimension]), sizes[dimension]
        place = ranks.index(me) // stride % size
        first = ranks.index(me) - place * stride
        ring = Group(ranks[first : first + size * stride : stride], me)
        yield from rounds(named(level, ALL_LEAD), ring, span)
        span = span.split(size)[place]


@lru_cache(256)  # asked for by every rank
def balanced(sizes: tuple[int, ...], speeds: tuple[int, ...]) -> dict[Order, int]:
    """How many parts take each order: a part goes first along the dimension that has been busy for the least time."""
    busy, taken = [Fraction(0)] * len(sizes), Counter[Order]()
    for _ in range(PARTS):
        order = tuple(sorted(range(len(sizes)), key=busy.__getitem__))
        taken[order] += 1
        left = Fraction(1)
        for dimension in order:
            busy[dimension] += left * (sizes[dimension] - 1) / sizes[dimension] / speeds[dimension]
            left /= sizes[dimension]
    return dict(taken)


def fast(speeds: str | int, dimensions: int) -> tuple[int, ...]:
    """Of each dimension, in some unit. ValueError where that is not said of each."""
    if isinstance(speeds, int):
        return tuple(speeds**outer for outer in reversed(range(dimensions)))
    found = tuple(map(int, speeds.split(":")))
    if len(found) != dimensions or not all(found):
        raise ValueError(f"speeds={speeds!r} are of {len(found)} levels, and there are {dimensions}; none may be 0")
    return found
