"""Binomial tree: fold from the leaves to the root; a broadcast is the mirror image.

A node takes all its children in one fold, and sends the sum to its parent. Counted from the root, the parent of v is v
without its lowest bit:

    0 <- 1, 2, 4        2 <- 3        4 <- 5, 6        6 <- 7
"""

from collections.abc import Iterator
from typing import NamedTuple

from collectives.algorithms.ring import pass_around
from collectives.schedule import (
    DATA,
    INPUT,
    OUTPUT,
    SCRATCH,
    WHOLE,
    Group,
    Round,
    Span,
    fold,
    mirror,
    recv,
    send,
    there_and_back,
)


def allreduce(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Reduce to the first rank, then broadcast from it.

    Few messages in all; every rank but the inner ones sends once.
    Cost: at most 2 ceil(log2 p) (alpha + n beta) + ceil(log2 p) n gamma.
    Serves: any number of ranks.
    Paper: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
    """
    yield from there_and_back(up(g, binomial(g), span))


def reduce(g: Group, span: Span = WHOLE, root: int = 0) -> Iterator[Round]:
    """Fold from the leaves to the root.

    Sums under way lie in scratch, so that every input stays as it is.
    Cost: at most ceil(log2 p) (alpha + n beta + n gamma).
    Serves: any number of ranks, any root.
    Paper: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
    """
    yield from up(g, binomial(g, root), span, INPUT, SCRATCH, OUTPUT)


def broadcast(g: Group, span: Span = WHOLE, root: int = 0) -> Iterator[Round]:
    """From the root to the leaves: the mirror image of a reduce.

    Whoever has the message passes it to all its children at once.
    Cost: at most ceil(log2 p) (alpha + n beta).
    Serves: any number of ranks, any root.
    Paper: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
    """
    yield from mirror(up(g, binomial(g, root), span))


def scatter_allgather(g: Group, span: Span = WHOLE, root: int = 0) -> Iterator[Round]:
    """Scatter chunks down the tree, each subtree's own to its head, then allgather them around the ring.

    Nobody sends much more than twice the message: for long ones.
    Cost: (ceil(log2 p) + p - 1) alpha + 2 n (p-1)/p beta.
    Serves: any number of ranks, any root.
    Paper: Barnett et al., Interprocessor collective communication library (InterCom), 1994.
    """
    g = Group(g.ranks[root:] + g.ranks[:root], g.me)  # counted from the root: a subtree's chunks lie in a row
    tree, chunk = binomial(g), span.split(g.size)

    def subtree(head: int) -> Span:
        """The chunks of the ranks below a head, its own included."""
        place = g.ranks.index(head)
        return Span(chunk[place].lo, chunk[min(place + (place & -place or g.size), g.size) - 1].hi)

    if tree.parent is not None:
        yield [recv(subtree(g.me), tree.parent)]
    yield [send(subtree(child), child) for child in reversed(tree.children)]
    yield from pass_around(g, span)


class Tree(NamedTuple):
    """One rank's place in a tree."""

    parent: int | None
    children: tuple[int, ...]


def binomial(g: Group, root: int = 0) -> Tree:
    v = (g.rank - root) % g.size
    low = v & -v or g.size
    children = [v + (1 << k) for k in range(g.size.bit_length()) if 1 << k < low and v + (1 << k) < g.size]
    return Tree(g[(v ^ low) + root] if v else None, tuple(g[c + root] for c in children))


def up(g: Group, tree: Tree, span: Span, own: str = DATA, partial: str = DATA, result: str = DATA) -> Iterator[Round]:
    """Reduce up any tree: operands lie in `own`, sums under way in `partial`, the root's in `result`."""
    leaf, root = not tree.children, tree.parent is None
    if root or not leaf:
        yield fold(span, (g.me, *tree.children), g.me, result if root else partial, own)
    if tree.parent is not None:
        yield [send(span, tree.parent, own if leaf else partial)]
