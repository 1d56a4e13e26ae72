"""Bruck: who holds d chunks in a row, from its own on, passes them d places left; d doubles.

Rank 0 of 5 holds chunk 0, then 0 1, then 0 1 2 3, then all: of the last row only what is lacking is sent.
"""

from collections.abc import Iterator

from collectives.schedule import INPUT, OUTPUT, WHOLE, Group, Round, Span, copy, recv, send, wrapped


def allgather(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Pass all that I hold to the left, at distance 1, 2, 4, ...

    The least data in the fewest rounds. Chunks stay at home, so a row that wraps around is two messages.
    Cost: ceil(log2 p) alpha + n (p-1)/p beta.
    Serves: any number of ranks.
    Paper: Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, 1997.
    """
    chunk, me, p = span.split(g.size), g.rank, g.size
    yield [copy(chunk[me], INPUT, OUTPUT)]
    d = 1
    while d < p:
        mine, theirs = (wrapped(chunk, first, min(d, p - d)) for first in (me, me + d))
        yield [send(x, g[me - d], OUTPUT) for x in mine] + [recv(x, g[me + d], OUTPUT) for x in theirs]
        d *= 2


def barrier(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Dissemination: in each round tell the rank at distance 1, 2, 4, ... of all that I have heard of.

    Who has heard of everybody knows that everybody has come. A sign of life is a byte.
    Cost: ceil(log2 p) alpha + (p-1) beta.
    Serves: any number of ranks.
    Paper: Hensgen, Finkel and Manber, Two algorithms for barrier synchronization, 1988.
    """
    yield from allgather(g, span)
