"""Wider and narrower trees than the binomial one: k-nomial, k-ary, and the chain, which is the narrowest.

Counted from the root, with k = 3 and 9 ranks:

    k-nomial: the parent is without the lowest digit      0 <- 1, 2, 3, 6        3 <- 4, 5        6 <- 7, 8
    k-ary: the parent of v is (v - 1) // k                0 <- 1, 2, 3           1 <- 4, 5, 6     2 <- 7, 8
    chain: the parent of v is v - 1                       0 <- 1 <- 2 <- 3 <- ...
"""

from collections.abc import Iterator

from collectives.algorithms.tree import Tree, up
from collectives.schedule import INPUT, OUTPUT, SCRATCH, WHOLE, Group, Round, Span, mirror, there_and_back


def knomial(g: Group, radix: int, root: int = 0) -> Tree:
    """My place in the k-nomial tree: place v with the digits of v in base k."""
    v, power, children = (g.rank - root) % g.size, 1, list[int]()
    while power < g.size and v // power % radix == 0:
        children += [v + digit * power for digit in range(1, radix) if v + digit * power < g.size]
        power *= radix
    parent = v - v // power % radix * power if v else None
    return Tree(None if parent is None else g[parent + root], tuple(g[child + root] for child in children))


def kary(g: Group, radix: int, root: int = 0) -> Tree:
    """My place in the k-ary tree, numbered level by level; a chain for k = 1."""
    v = (g.rank - root) % g.size
    children = range(radix * v + 1, min(radix * v + radix + 1, g.size))
    return Tree(g[(v - 1) // radix + root] if v else None, tuple(g[child + root] for child in children))


# k-nomial


def knomial_allreduce(g: Group, span: Span = WHOLE, radix: int = 4) -> Iterator[Round]:
    """Reduce to the first rank along the k-nomial tree, then broadcast from it.

    Fewer rounds than binomial, with more messages in each: where messages overlap, as in shared memory.
    Cost: at most 2 ceil(log_k p) alpha + (k-1) ceil(log_k p) (n beta + n gamma).
    Serves: any number of ranks.
    Paper: Ruefenacht et al., Generalisation of recursive doubling for allreduce, 2017.
    """
    yield from there_and_back(up(g, knomial(g, radix), span))


def knomial_reduce(g: Group, span: Span = WHOLE, root: int = 0, radix: int = 4) -> Iterator[Round]:
    """Fold from the leaves of the k-nomial tree to the root, all children of a node at once.

    Fewer rounds than binomial, with more messages in each.
    Cost: at most ceil(log_k p) alpha + n beta to send + (k-1) ceil(log_k p) n gamma.
    Serves: any number of ranks, any root.
    Paper: Ruefenacht et al., Generalisation of recursive doubling for allreduce, 2017.
    """
    yield from up(g, knomial(g, radix, root), span, INPUT, SCRATCH, OUTPUT)


def knomial_broadcast(g: Group, span: Span = WHOLE, root: int = 0, radix: int = 4) -> Iterator[Round]:
    """From the root of the k-nomial tree to its leaves.

    Fewer rounds than binomial, with more messages in each.
    Cost: at most ceil(log_k p) alpha + (k-1) ceil(log_k p) n beta.
    Serves: any number of ranks, any root.
    Paper: Ruefenacht et al., Generalisation of recursive doubling for allreduce, 2017.
    """
    yield from mirror(up(g, knomial(g, radix, root), span))


# k-ary


def kary_allreduce(g: Group, span: Span = WHOLE, radix: int = 2) -> Iterator[Round]:
    """Reduce to the first rank along the k-ary tree, then broadcast from it.

    No rank has more than k children, so that a pipeline of segments flows through all of them.
    Cost: 2 depth alpha + (k+1) n beta + k n gamma, with a depth of about log_k p.
    Serves: any number of ranks.
    Paper: Chan et al., Collective communication: theory, practice, and experience, 2007.
    """
    yield from there_and_back(up(g, kary(g, radix), span))


def kary_reduce(g: Group, span: Span = WHOLE, root: int = 0, radix: int = 2) -> Iterator[Round]:
    """Fold from the leaves of the k-ary tree to the root.

    No rank has more than k children: for pipelines.
    Cost: depth alpha + n beta to send + k n gamma, with a depth of about log_k p.
    Serves: any number of ranks, any root.
    Paper: Chan et al., Collective communication: theory, practice, and experience, 2007.
    """
    yield from up(g, kary(g, radix, root), span, INPUT, SCRATCH, OUTPUT)


def kary_broadcast(g: Group, span: Span = WHOLE, root: int = 0, radix: int = 2) -> Iterator[Round]:
    """From the root of the k-ary tree to its leaves.

    No rank has more than k children: for pipelines.
    Cost: depth alpha + k n beta, with a depth of about log_k p.
    Serves: any number of ranks, any root.
    Paper: Chan et al., Collective communication: theory, practice, and experience, 2007.
    """
    yield from mirror(up(g, kary(g, radix, root), span))


# Chain


def chain_allreduce(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Fold down the chain of ranks to the first, then hand the result back up it.

    Everybody sends twice, to neighbours alone: as a pipeline, the least data with the simplest traffic.
    Cost: 2 (p-1) alpha for the first segment to get through; 2 n beta + n gamma.
    Serves: any number of ranks.
    Paper: Van de Geijn, On global combine operations, 1994.
    """
    yield from there_and_back(up(g, kary(g, 1), span))


def chain_reduce(g: Group, span: Span = WHOLE, root: int = 0) -> Iterator[Round]:
    """Fold along the chain of ranks to the root.

    Everybody sends once: as a pipeline, for the longest messages.
    Cost: (p-1) alpha for the first segment to get through; n beta + n gamma.
    Serves: any number of ranks, any root.
    Paper: Van de Geijn, On global combine operations, 1994.
    """
    yield from up(g, kary(g, 1, root), span, INPUT, SCRATCH, OUTPUT)


def chain_broadcast(g: Group, span: Span = WHOLE, root: int = 0) -> Iterator[Round]:
    """Hand the message from rank to rank, beginning with the root.

    Everybody sends once: as a pipeline, for the longest messages.
    Cost: (p-1) alpha for the first segment to get through; n beta.
    Serves: any number of ranks, any root.
    Paper: Van de Geijn, On global combine operations, 1994.
    """
    yield from mirror(up(g, kary(g, 1, root), span))


# Linear: the widest


def linear_allreduce(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Everyone sends everything to the first rank, which folds it in rank order and sends everyone the result.

    Two rounds and the canonical tree, but all the work is one rank's.
    Cost: 2 alpha + (p-1) n beta + (p-1) n gamma.
    Serves: any number of ranks; a fixed order.
    Paper: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005 (linear).
    """
    yield from there_and_back(up(g, kary(g, g.size), span))
