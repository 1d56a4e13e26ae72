"""Two-dimensional torus: ranks are a table, rows and columns are rings, and two halves of the message cross.

The table is as square as the number of ranks allows; a prime number is one row, hence a ring. For 6 ranks:

    row 0    0 1 2        one half: rows, then columns, then rows
    row 1    3 4 5        the other: columns, then rows, then columns
"""

from collections.abc import Iterator
from math import isqrt

from collectives.algorithms import ring
from collectives.schedule import WHOLE, Group, Phase, Round, Span, lane


def allreduce(g: Group, span: Span = WHOLE, slots: int = 0) -> Iterator[Phase]:
    """Reduce-scatter along one dimension, allreduce along the other, and back; for half of the message the other way.

    As little data as a ring in about 4 sqrt(p) rounds, over all links of a torus. A pipeline where there are slots.
    Cost: 2 (r + c - 2) alpha for r rows of c ranks; 2 n (p-1)/p beta + n (p-1)/p gamma.
    Serves: any number of ranks; best where r and c are near each other.
    Paper: Mikami et al., Massively distributed SGD: ImageNet/ResNet-50 training in a flash, 2018 (2D-torus all-reduce).
    """
    rows = next(r for r in range(isqrt(g.size), 0, -1) if g.size % r == 0)
    columns = g.size // rows
    row, column = g.rank // columns * columns, g.rank % columns
    along, across = Group(g.ranks[row : row + columns], g.me), Group(g.ranks[column::columns], g.me)
    lanes = {}
    for number, (first, then, half) in enumerate(zip((along, across), (across, along), span.split(2), strict=True)):
        lanes[number] = lane(crossed(first, then, half), half.split(first.size) if slots else (), slots or 1)
    yield Phase(lanes)


def crossed(first: Group, then: Group, span: Span) -> Iterator[Round]:
    yield from ring.fold_around(first, span)
    yield from ring.allreduce(then, span.split(first.size)[first.rank])
    yield from ring.pass_around(first, span)
