"""Halving and doubling by any factors: p = f1 f2 ... fm, and ranks are numbers with such digits.

At each level the ranks that differ in one digit alone cut what they hold together into as many parts, and each folds
its own part of all of them. With p = 6 = 2 * 3, where rank 5 is (1, 2):

    digit 1    0 <-> 3    1 <-> 4    2 <-> 5        halves
    digit 2    0 <-> 1 <-> 2 <-> 0   3 <-> 4 <-> 5 <-> 3    sixths; chunk r is home at rank r

A factor is at most the radix, where p has such a divisor. A prime number of ranks is one level: everybody with
everybody.
"""

from collections.abc import Iterator

from collectives.algorithms.gather import subtree
from collectives.algorithms.tree import binomial
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
    fold,
    mirror,
    recv,
    send,
    there_and_back,
)


def allreduce(g: Group, span: Span = WHOLE, radix: int = 2) -> Iterator[Round]:
    """Scatter-reduce by halving, thirding, ... and allgather back the same way.

    The least data for any number of ranks; the radix trades rounds for messages.
    Cost: 2 m alpha, with m factors of p, in which a rank sends f - 1 messages each; 2 n (p-1)/p beta + n (p-1)/p gamma.
    Serves: any number of ranks.
    Paper: Jocksch et al., An optimisation of allreduce communication in message-passing systems, 2021.
    """
    yield from there_and_back(scatter(g, span, radix))


def reduce_scatter(g: Group, span: Span = WHOLE, radix: int = 2) -> Iterator[Round]:
    """Fold halves, thirds, ... of what ranks hold, until every chunk is home.

    Few rounds and the least data; partial sums lie in scratch.
    Cost: m alpha, with m factors of p; n (p-1)/p beta + n (p-1)/p gamma.
    Serves: any number of ranks.
    Paper: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
    """
    if g.size == 1:
        yield [copy(span, INPUT, OUTPUT)]
    yield from scatter(g, span, radix, INPUT, SCRATCH, OUTPUT)


def allgather(g: Group, span: Span = WHOLE, radix: int = 2) -> Iterator[Round]:
    """Swap what ranks hold with those that differ in one digit: twice, three times, ... as much each round.

    Few rounds and the least data.
    Cost: m alpha, with m factors of p; n (p-1)/p beta.
    Serves: any number of ranks.
    Paper: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
    """
    yield [copy(span.split(g.size)[g.rank], INPUT, OUTPUT)]
    yield from mirror(scatter(g, span, radix, OUTPUT, OUTPUT, OUTPUT))


def reduce(g: Group, span: Span = WHOLE, root: int = 0, radix: int = 2) -> Iterator[Round]:
    """Scatter-reduce by halving, then gather the chunks along the binomial tree.

    Work and traffic are shared by all: for long messages.
    Cost: (m + ceil(log2 p)) alpha, with m factors of p; 2 n (p-1)/p beta + n (p-1)/p gamma.
    Serves: any number of ranks, any root.
    Paper: Rabenseifner, Optimization of collective reduction operations, 2004.
    """
    tree, chunk, here = binomial(g, root), span.split(g.size), OUTPUT if g.me == g[root] else SCRATCH
    if g.size == 1:
        yield [copy(span, INPUT, OUTPUT)]
    yield from scatter(g, span, radix, INPUT, SCRATCH, here)
    yield [recv(x, child, here) for child in tree.children for x in subtree(g, chunk, g.ranks.index(child), root)]
    if tree.parent is not None:
        yield [send(x, tree.parent, here) for x in subtree(g, chunk, g.rank, root)]


# Reduce-scatter: my own operands lie in `own`, sums under way in `partial`, my chunk of the result in `result`.


def scatter(
    g: Group, span: Span, radix: int, own: str = DATA, partial: str = DATA, result: str = DATA
) -> Iterator[Round]:
    window, stride = span, g.size
    for factor in factors(g.size, radix):
        stride //= factor
        digit, parts = g.rank // stride % factor, window.split(factor)
        peers = [g[g.rank + (other - digit) * stride] for other in range(factor)]
        sends = [send(part, peer, own) for part, peer in zip(parts, peers, strict=True) if peer != g.me]
        window = parts[digit]
        yield sends + fold(window, peers, g.me, result if stride == 1 else partial, own)
        own = partial


def factors(p: int, radix: int) -> list[int]:
    """Of p, each the largest that is at most the radix; where there is none, the smallest that is there."""
    found = []
    while p > 1:
        fitting = [f for f in range(2, min(p, radix) + 1) if p % f == 0]
        found.append(fitting[-1] if fitting else next(f for f in range(2, p + 1) if p % f == 0))
        p //= found[-1]
    return found
