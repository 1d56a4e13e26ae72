"""Gather and scatter: chunks on their way to one rank, or from it, straight or along the binomial tree.

Counted from the root, the subtree of a place holds the chunks of the places from it on: a row, in one message. With 6
ranks, and so many chunks in a message:

    0 <- 1: 1      0 <- 2: 2      2 <- 3: 1      0 <- 4: 2      4 <- 5: 1
"""

from collections.abc import Iterator

from collectives.algorithms.tree import binomial
from collectives.schedule import INPUT, OUTPUT, SCRATCH, WHOLE, Group, Round, Span, copy, recv, send, wrapped


def gather(g: Group, span: Span = WHOLE, root: int = 0) -> Iterator[Round]:
    """Every rank passes the chunks of its subtree to its parent.

    Few rounds, for short messages; on the way, chunks lie in scratch.
    Cost: at most ceil(log2 p) alpha + n (p-1)/p beta, at the root.
    Serves: any number of ranks, any root.
    Paper: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
    """
    tree, chunk, place = binomial(g, root), span.split(g.size), g.ranks.index
    here = OUTPUT if tree.parent is None else SCRATCH if tree.children else INPUT
    if here != INPUT:
        came = [recv(x, child, here) for child in tree.children for x in subtree(g, chunk, place(child), root)]
        yield [copy(chunk[g.rank], INPUT, here), *came]
    if tree.parent is not None:
        yield [send(x, tree.parent, here) for x in subtree(g, chunk, g.rank, root)]


def scatter(g: Group, span: Span = WHOLE, root: int = 0) -> Iterator[Round]:
    """Every rank passes to each child the chunks of the child's subtree.

    Few rounds, for short messages; on the way, chunks lie in scratch.
    Cost: at most ceil(log2 p) alpha + n (p-1)/p beta, at the root.
    Serves: any number of ranks, any root.
    Paper: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
    """
    tree, chunk, place = binomial(g, root), span.split(g.size), g.ranks.index
    here = INPUT if tree.parent is None else SCRATCH if tree.children else OUTPUT
    if tree.parent is not None:
        yield [recv(x, tree.parent, here) for x in subtree(g, chunk, g.rank, root)]
    if here != OUTPUT:
        sends = [send(x, child, here) for child in tree.children[::-1] for x in subtree(g, chunk, place(child), root)]
        yield [copy(chunk[g.rank], here, OUTPUT), *sends]


def subtree(g: Group, chunk: tuple[Span, ...], rank: int, root: int) -> list[Span]:
    """The chunks of the places below a place of the group, its own included."""
    v = (rank - root) % g.size
    return wrapped(chunk, rank, min(v & -v or g.size, g.size - v))


def gather_direct(g: Group, span: Span = WHOLE, root: int = 0) -> Iterator[Round]:
    """Everyone sends its chunk to the root.

    One round, and nothing is sent twice.
    Cost: alpha + n (p-1)/p beta, at the root.
    Serves: any number of ranks, any root.
    Paper: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005 (linear).
    """
    chunk = dict(zip(g.ranks, span.split(g.size), strict=True))
    if g.me == g[root]:
        yield [copy(chunk[g.me], INPUT, OUTPUT), *(recv(chunk[r], r, OUTPUT) for r in g.ranks if r != g.me)]
    else:
        yield [send(chunk[g.me], g[root], INPUT)]


def scatter_direct(g: Group, span: Span = WHOLE, root: int = 0) -> Iterator[Round]:
    """The root sends everyone its chunk.

    One round, and nothing is sent twice.
    Cost: alpha + n (p-1)/p beta, at the root.
    Serves: any number of ranks, any root.
    Paper: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005 (linear).
    """
    chunk = dict(zip(g.ranks, span.split(g.size), strict=True))
    if g.me == g[root]:
        yield [copy(chunk[g.me], INPUT, OUTPUT), *(send(chunk[r], r, INPUT) for r in g.ranks if r != g.me)]
    else:
        yield [recv(chunk[g.me], g[root], OUTPUT)]
