"""Ring: every rank passes a chunk to its right neighbour and takes one from its left.

Chunk c starts at rank c + 1, is folded at every rank that it reaches, and is home at rank c after p - 1 rounds; the
allgather sends it once more around. Chunks of 4 ranks, in the rounds of the reduce-scatter:

    round      0 -> 1     1 -> 2     2 -> 3     3 -> 0
      0          3          0          1          2
      1          2          3          0          1
      2          1          2          3          0
"""

from collections.abc import Iterator

from collectives.schedule import (
    DATA,
    INPUT,
    OUTPUT,
    SCRATCH,
    WHOLE,
    Group,
    Phase,
    Round,
    Span,
    copy,
    lane,
    recv,
    recv_reduce,
    send,
)


def allreduce(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Fold chunks around the ring until each is home, then send them around once more.

    The least data of all: nobody sends more than twice the message, and only to a neighbour. Slow where it is short.
    Cost: 2 (p-1) (alpha + n/p beta) + (p-1) n/p gamma.
    Serves: any number of ranks.
    Paper: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
    """
    yield from fold_around(g, span)
    yield from pass_around(g, span)


def bidirectional(g: Group, span: Span = WHOLE, slots: int = 0) -> Iterator[Phase]:
    """One half of the message around the ring to the right, the other to the left, at once.

    Both directions of every link are busy. A pipeline of `slots` slots where there are any.
    Cost: 2 (p-1) alpha + 2 n (p-1)/p beta, of which each direction of a link carries half; (p-1) n/p gamma.
    Serves: any number of ranks.
    Paper: Jain and Sabharwal, Optimal bucket algorithms for large MPI collectives on torus interconnects, 2010.
    """
    ways, lanes = (g, Group(g.ranks[::-1], g.me)), {}
    for number, (way, half) in enumerate(zip(ways, span.split(2), strict=True)):
        lanes[number] = lane(allreduce(way, half), half.split(g.size) if slots else (), slots or 1)
    yield Phase(lanes)


def reduce_scatter(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Fold chunks around the ring until each is home.

    Partial sums travel through scratch, so the input stays as it is.
    Cost: (p-1) (alpha + n/p beta + n/p gamma).
    Serves: any number of ranks.
    Paper: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
    """
    if g.size == 1:
        yield [copy(span, INPUT, OUTPUT)]
    yield from fold_around(g, span, INPUT, SCRATCH, OUTPUT)


def allgather(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Send every chunk once around the ring.

    Neighbours only; the least data, the most rounds.
    Cost: (p-1) (alpha + n/p beta).
    Serves: any number of ranks.
    Paper: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
    """
    yield [copy(span.split(g.size)[g.rank], INPUT, OUTPUT)]
    yield from pass_around(g, span, OUTPUT)


# Reduce-scatter: my own operands lie in `own`, sums under way in `partial`, my chunk of the result in `result`.


def fold_around(g: Group, span: Span, own: str = DATA, partial: str = DATA, result: str = DATA) -> Iterator[Round]:
    chunk, me, last = span.split(g.size), g.rank, g.size - 2
    for t in range(g.size - 1):
        yield [
            send(chunk[me - 1 - t], g[me + 1], partial if t else own),
            recv_reduce(chunk[me - 2 - t], g[me - 1], result if t == last else partial, own),
        ]


# Allgather: my chunk is in place, and the others come from the left.


def pass_around(g: Group, span: Span, buffer: str = DATA) -> Iterator[Round]:
    chunk, me = span.split(g.size), g.rank
    for t in range(g.size - 1):
        yield [send(chunk[me - t], g[me + 1], buffer), recv(chunk[me - 1 - t], g[me - 1], buffer)]
