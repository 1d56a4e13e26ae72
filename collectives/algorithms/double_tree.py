"""Double binary tree: two trees, each with half of the message, side by side as two pipelines.

Every second place of the first tree is a leaf. The second tree is the same with the ranks moved by one, or mirrored if
their number is even, so that no rank is an inner node of both:

    p = 7          3                     4                  p = 6       3                     2
               1       5             2       6                      1       5             4       0
             0   2   4   6         1   3   5   0                  0   2   4             5   3   1
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from collectives.algorithms.tree import Tree, up
from collectives.schedule import (
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
    mirror,
    there_and_back,
)


def allreduce(g: Group, span: Span = WHOLE, slots: int = 0) -> Iterator[Phase]:
    """Reduce and broadcast, each half of the message in a tree of its own.

    Both directions of every rank's link are busy. A pipeline of `slots` slots where there are any.
    Cost: 2 ceil(log2 p) alpha for the first segment to get through; 2 n beta + n gamma.
    Serves: any number of ranks.
    Paper: Sanders, Speck and Traff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009.
    """
    both = zip(trees(g), span.split(2), strict=True)
    yield halves(span, slots, [there_and_back(up(g, tree, half)) for tree, half in both])


def reduce(g: Group, span: Span = WHOLE, root: int = 0, slots: int = 0) -> Iterator[Phase]:
    """Each half of the message up a tree of its own over all ranks but the root, which takes both halves.

    Both directions of every rank's link are busy. A pipeline of `slots` slots where there are any.
    Cost: (1 + ceil(log2 p)) alpha for the first segment to get through; n beta + n gamma.
    Serves: any number of ranks, any root.
    Paper: Sanders, Speck and Traff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009.
    """
    if g.size == 1:
        yield Phase({0: lane([[copy(span, INPUT, OUTPUT)]])})
        return
    yield halves(span, slots, [up(g, tree, half, INPUT, SCRATCH, OUTPUT) for tree, half in rooted(g, span, root)])


def broadcast(g: Group, span: Span = WHOLE, root: int = 0, slots: int = 0) -> Iterator[Phase]:
    """Each half of the message down a tree of its own over all ranks but the root, which sends both halves.

    Both directions of every rank's link are busy. A pipeline of `slots` slots where there are any.
    Cost: (1 + ceil(log2 p)) alpha for the first segment to get through; n beta.
    Serves: any number of ranks, any root.
    Paper: Sanders, Speck and Traff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009.
    """
    if g.size > 1:
        yield halves(span, slots, [mirror(up(g, tree, half)) for tree, half in rooted(g, span, root)])


def rooted(g: Group, span: Span, root: int) -> list[tuple[Tree, Span]]:
    """My places in both trees over all ranks but the root, which is above both; and their halves of the message."""
    others = [rank for rank in g.ranks if rank != g[root]]
    if g.me == g[root]:
        heads = [next(rank for rank in others if trees(Group(others, rank))[i].parent is None) for i in (0, 1)]
        places = [Tree(None, (head,)) for head in heads]
    else:
        places = [Tree(g[root] if t.parent is None else t.parent, t.children) for t in trees(Group(others, g.me))]
    return list(zip(places, span.split(2), strict=True))


def halves(span: Span, slots: int, both: Iterable[Iterable[Round]]) -> Phase:
    """A lane for each half of the message; pipelines where there are slots."""
    parts = zip(both, span.split(2), strict=True)
    return Phase({i: lane(rounds, [half] if slots else (), slots or 1) for i, (rounds, half) in enumerate(parts)})


def trees(g: Group) -> tuple[Tree, Tree]:
    """My places in both trees."""
    family, last = in_order(g.size), g.size - 1

    def tree(place: int, rank_at: Callable[[int], int]) -> Tree:
        parent, children = family[place]
        return Tree(None if parent is None else rank_at(parent), tuple(rank_at(i) for i in children))

    if g.size % 2:
        return tree(g.rank, lambda i: g[i]), tree((g.rank - 1) % g.size, lambda i: g[i + 1])
    return tree(g.rank, lambda i: g[i]), tree(last - g.rank, lambda i: g[last - i])


@lru_cache(16)  # asked for by every rank
def in_order(size: int) -> tuple[tuple[int | None, tuple[int, ...]], ...]:
    """Parent and children of places 0 to size - 1, numbered from left to right; left subtrees are perfect."""
    parents: list[int | None] = [None] * size
    children: list[list[int]] = [[] for _ in range(size)]
    open_ = [(0, size, -1)]
    while open_:
        lo, hi, parent = open_.pop()
        if lo == hi:
            continue
        root = lo + (1 << (hi - lo).bit_length() - 1) - 1
        if parent >= 0:
            parents[root] = parent
            children[parent].append(root)
        open_ += [(root + 1, hi, root), (lo, root, root)]
    return tuple((parent, tuple(below)) for parent, below in zip(parents, children, strict=True))
