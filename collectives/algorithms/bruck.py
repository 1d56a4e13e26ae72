"""Bruck: who holds d chunks in a row, from its own on, passes them d places left; d doubles.

Rank 0 of 5 holds chunk 0, then 0 1, then 0 1 2 3, then all: of the last row only what is lacking is sent.
"""

from collections.abc import Iterator

from collectives.schedule import INPUT, OUTPUT, WHOLE, Group, Round, Span, copy, recv, send


def allgather(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Pass all that I hold to the left, at distance 1, 2, 4, ...

    The least data in the fewest rounds. Chunks stay at home, so a row that wraps around is two messages.
    Cost: ceil(log2 p) alpha + n (p-1)/p beta.
    Serves: any number of ranks.
    Paper: Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, 1997.
    """
    chunk, me, p = span.split(g.size), g.rank, g.size

    def row(first: int, n: int) -> list[Span]:
        """Chunks first to first + n - 1, wrapping around, as one or two spans."""
        first %= p
        head, tail = chunk[first : first + n], chunk[: max(0, first + n - p)]
        return [Span(part[0].lo, part[-1].hi) for part in (head, tail) if part]

    yield [copy(chunk[me], INPUT, OUTPUT)]
    d = 1
    while d < p:
        n = min(d, p - d)
        yield [send(x, g[me - d], OUTPUT) for x in row(me, n)] + [recv(x, g[me + d], OUTPUT) for x in row(me + d, n)]
        d *= 2
