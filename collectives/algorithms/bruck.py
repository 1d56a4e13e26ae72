"""Bruck and PAT: chunks go home, or come from there, along binomial trees, one for each chunk and all alike.

Bruck: who holds d chunks in a row, from its own on, passes them d places left; d doubles. Rank 0 of 5 holds chunk 0,
then 0 1, then 0 1 2 3, then all: of the last row only what is lacking is sent. PAT goes the other way round: the first
message of a chunk goes the farthest, and the most data goes to the next neighbour. Chunk 0 of 5 ranks:

    Bruck    1: 0 -> 4        2: 0 -> 3, 4 -> 2                3: 0 -> 1
    PAT      1: 0 -> 4        2: 0 -> 2                        3: 0 -> 1, 2 -> 3
"""

from collections.abc import Iterator
from itertools import groupby

from collectives.schedule import (
    DATA,
    INPUT,
    OUTPUT,
    SCRATCH,
    WHOLE,
    Group,
    Round,
    Span,
    copy,
    mirror,
    recv,
    recv_reduce,
    send,
    there_and_back,
    wrapped,
)


def allreduce(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Fold rows of chunks at distance ..., 4, 2, 1 until each is home, then pass them on at 1, 2, 4, ...

    The least data in the fewest rounds, also for no power of two.
    Cost: 2 ceil(log2 p) alpha + 2 n (p-1)/p beta + n (p-1)/p gamma.
    Serves: any number of ranks.
    Paper: Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, 1997.
    """
    yield from there_and_back(fold_rows(g, span))


def reduce_scatter(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Fold rows of chunks at distance ..., 4, 2, 1 until each is home.

    The least data in the fewest rounds, also for no power of two.
    Cost: ceil(log2 p) alpha + n (p-1)/p beta + n (p-1)/p gamma.
    Serves: any number of ranks.
    Paper: Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, 1997.
    """
    if g.size == 1:
        yield [copy(span, INPUT, OUTPUT)]
    yield from fold_rows(g, span, INPUT, SCRATCH, OUTPUT)


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


def pat_allreduce(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Fold every chunk along its tree, near neighbours first, and hand it back the same way.

    As few rounds as Bruck, and only single chunks go far; each chunk is a message of its own.
    Cost: 2 ceil(log2 p) alpha, with p - 1 messages each way; 2 n (p-1)/p beta + n (p-1)/p gamma.
    Serves: any number of ranks.
    Paper: Jeaugey, PAT: a new algorithm for all-gather and reduce-scatter operations at scale, 2025.
    """
    yield from there_and_back(fold_near(g, span))


def pat_reduce_scatter(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Fold every chunk along its tree, near neighbours first, until it is home.

    As few rounds as Bruck, and only single chunks go far; each chunk is a message of its own.
    Cost: ceil(log2 p) alpha, with p - 1 messages; n (p-1)/p beta + n (p-1)/p gamma.
    Serves: any number of ranks.
    Paper: Jeaugey, PAT: a new algorithm for all-gather and reduce-scatter operations at scale, 2025.
    """
    if g.size == 1:
        yield [copy(span, INPUT, OUTPUT)]
    yield from fold_near(g, span, INPUT, SCRATCH, OUTPUT)


def pat_allgather(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Hand every chunk down its tree, the farthest first.

    As few rounds as Bruck, and only single chunks go far; each chunk is a message of its own.
    Cost: ceil(log2 p) alpha, with p - 1 messages; n (p-1)/p beta.
    Serves: any number of ranks.
    Paper: Jeaugey, PAT: a new algorithm for all-gather and reduce-scatter operations at scale, 2025.
    """
    yield [copy(span.split(g.size)[g.rank], INPUT, OUTPUT)]
    yield from mirror(fold_near(g, span, OUTPUT, OUTPUT, OUTPUT))


# Reduce-scatter: my own operands lie in `own`, sums under way in `partial`, my chunk of the result in `result`.


def fold_rows(g: Group, span: Span, own: str = DATA, partial: str = DATA, result: str = DATA) -> Iterator[Round]:
    """The allgather backwards. In each message, sums of one weight: those of the chunk j places on weigh weight[j]."""
    chunk, me, p = span.split(g.size), g.rank, g.size
    weight = [1] * p  # and those that weigh 1 are my own operands
    for d in (1 << k for k in reversed(range((p - 1).bit_length()))):
        n = min(d, p - d)
        runs = [list(run) for _, run in groupby(range(n), key=lambda j: (weight[j], weight[j + d]))]
        steps: Round = []
        for run in runs:
            here, there = (wrapped(chunk, me + run[0] + more, len(run)) for more in (0, d))
            first = weight[run[0]] == 1
            steps += [send(x, g[me + d], own if weight[run[0] + d] == 1 else partial) for x in there]
            steps += [recv_reduce(x, g[me - d], result if d == 1 else partial, own if first else partial) for x in here]
        yield steps
        weight[:n] = [weight[j] + weight[j + d] for j in range(n)]


def fold_near(g: Group, span: Span, own: str = DATA, partial: str = DATA, result: str = DATA) -> Iterator[Round]:
    """Counted from its home, place v sends a chunk to v without its lowest bit."""
    chunk, me, p = span.split(g.size), g.rank, g.size
    for bit in (1 << k for k in range((p - 1).bit_length())):
        places = range(bit, p, 2 * bit)  # that send in this round

        sends = [send(chunk[(me - v) % p], g[me - bit], own if bit == 1 or v + 1 == p else partial) for v in places]
        folds = [(chunk[(me - v + bit) % p], partial if v > bit else result) for v in places]
        yield sends + [recv_reduce(x, g[me + bit], here, own if bit == 1 else here) for x, here in folds]
