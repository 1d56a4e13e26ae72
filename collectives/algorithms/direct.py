"""Direct: everybody talks to everybody at once, and what comes is folded in rank order: the canonical tree.

The schedule twins of the fused node kernels. Few rounds, many messages: for ranks that share memory.
"""

from collections.abc import Iterator

from collectives.schedule import (
    INPUT,
    OUTPUT,
    SCRATCH,
    WHOLE,
    Group,
    Round,
    Span,
    copy,
    fold,
    recv,
    send,
    there_and_back,
)

EQUAL = "equal"


def one_shot(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Everyone sends everything to everyone, and folds everything in rank order.

    One round, and the canonical tree; p - 1 times the data.
    Cost: alpha + (p-1) n beta + (p-1) n gamma.
    Serves: any number of ranks; a fixed order.
    Paper: Shah et al., MSCCL++: Rethinking GPU communication abstractions for AI inference, 2025 (all-pairs).
    """
    yield [send(span, to) for to in g.ranks if to != g.me] + fold(span, g.ranks, g.me)


def two_shot(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Everyone folds one chunk in rank order, then hands it to everyone.

    Two rounds, the least data, and the canonical tree.
    Cost: 2 alpha + 2 n (p-1)/p beta + n (p-1)/p gamma.
    Serves: any number of ranks; a fixed order.
    Paper: Shah et al., MSCCL++: Rethinking GPU communication abstractions for AI inference, 2025 (all-pairs).
    """
    yield from there_and_back(scatter(g, span))


def weighted(g: Group, span: Span = WHOLE, weights: str = EQUAL) -> Iterator[Round]:
    """As two_shot, with chunks in proportion to weights: who is slow folds and hands out less, or nothing.

    For groups of unequal processors or links. Weights are whole numbers in rank order, as 4:4:1; their sum is w.
    Cost: 2 alpha; at the rank of weight v, n (1 + (p-2) v/w) beta + (p-1) n v/w gamma.
    Serves: any number of ranks, each with a weight; a fixed order.
    Paper: Beaumont et al., Matrix multiplication on heterogeneous platforms, 2001 (shares in proportion to speed).
    """
    numbers = [1] * g.size if weights == EQUAL else [int(number) for number in weights.split(":")]
    if len(numbers) != g.size or not sum(numbers):
        raise ValueError(f"weights={weights!r} are for {len(numbers)} ranks, and these are {g.size}; not all may be 0")
    chunk = {rank: x for rank, x in zip(g.ranks, span.shares(numbers), strict=True) if x.size}
    sends = [send(x, to) for to, x in chunk.items() if to != g.me]
    yield from there_and_back([sends + (fold(chunk[g.me], g.ranks, g.me) if g.me in chunk else [])])


def single_copy(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """As two_shot, whose kernel on a node copies straight between processes.

    Nothing is staged, so it serves long messages in ordinary memory.
    Cost: 2 alpha + 2 n (p-1)/p beta + n (p-1)/p gamma.
    Serves: any number of ranks; a fixed order.
    Paper: Chai, Hartono and Panda, Designing high performance and scalable MPI intra-node communication, 2006.
    """
    yield from there_and_back(scatter(g, span))


def single_copy_allgather(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """As direct, whose kernel on a node copies straight between processes.

    Nothing is staged, so it serves long messages.
    Cost: alpha + n (p-1)/p beta.
    Serves: any number of ranks.
    Paper: Chai, Hartono and Panda, Designing high performance and scalable MPI intra-node communication, 2006.
    """
    yield from allgather(g, span)


def reduce_scatter(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Everyone folds its own chunk in rank order.

    One round, and the canonical tree.
    Cost: alpha + n (p-1)/p beta + n (p-1)/p gamma.
    Serves: any number of ranks; a fixed order.
    Paper: Shah et al., MSCCL++: Rethinking GPU communication abstractions for AI inference, 2025 (all-pairs).
    """
    chunk = dict(zip(g.ranks, span.split(g.size), strict=True))
    yield [send(chunk[to], to, INPUT) for to in g.ranks if to != g.me] + fold(chunk[g.me], g.ranks, g.me, OUTPUT, INPUT)


def reduce(g: Group, span: Span = WHOLE, root: int = 0) -> Iterator[Round]:
    """Everyone sends everything to the root, which folds it in rank order.

    One round, and the canonical tree; the root receives p - 1 times the data.
    Cost: alpha + (p-1) n beta + (p-1) n gamma.
    Serves: any number of ranks, any root; a fixed order.
    Paper: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005 (linear).
    """
    yield fold(span, g.ranks, g.me, OUTPUT, INPUT) if g.me == g[root] else [send(span, g[root], INPUT)]


def reduce_two_shot(g: Group, span: Span = WHOLE, root: int = 0) -> Iterator[Round]:
    """Everyone folds one chunk in rank order, then hands it to the root.

    Two rounds, and the canonical tree; the work of folding is shared.
    Cost: 2 alpha + 2 n (p-1)/p beta + n (p-1)/p gamma.
    Serves: any number of ranks, any root; a fixed order.
    Paper: Rabenseifner, Optimization of collective reduction operations, 2004.
    """
    chunk = dict(zip(g.ranks, span.split(g.size), strict=True))
    sends = [send(chunk[to], to, INPUT) for to in g.ranks if to != g.me]
    if g.me == g[root]:
        yield sends + fold(chunk[g.me], g.ranks, g.me, OUTPUT, INPUT)
        yield [recv(chunk[source], source, OUTPUT) for source in g.ranks if source != g.me]
    else:
        yield sends + fold(chunk[g.me], g.ranks, g.me, SCRATCH, INPUT)
        yield [send(chunk[g.me], g[root], SCRATCH)]


def broadcast(g: Group, span: Span = WHOLE, root: int = 0) -> Iterator[Round]:
    """The root sends everything to everyone.

    One round; the root sends p - 1 times the data.
    Cost: alpha + (p-1) n beta.
    Serves: any number of ranks, any root.
    Paper: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005 (linear).
    """
    to_all = [send(span, to) for to in g.ranks if to != g.me]
    yield to_all if g.me == g[root] else [recv(span, g[root])]


def allgather(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Everyone sends its chunk to everyone.

    One round.
    Cost: alpha + n (p-1)/p beta.
    Serves: any number of ranks.
    Paper: Shah et al., MSCCL++: Rethinking GPU communication abstractions for AI inference, 2025 (all-pairs).
    """
    chunk = dict(zip(g.ranks, span.split(g.size), strict=True))
    sends = [send(chunk[g.me], to, INPUT) for to in g.ranks if to != g.me]
    recvs = [recv(chunk[source], source, OUTPUT) for source in g.ranks if source != g.me]
    yield [copy(chunk[g.me], INPUT, OUTPUT), *sends, *recvs]


def scatter(g: Group, span: Span, owners: int | None = None) -> Iterator[Round]:
    """In place: my chunk of everyone's data, folded in rank order. owners: only so many first ranks have a chunk."""
    chunk = dict(zip(g.ranks[:owners], span.split(len(g.ranks[:owners])), strict=True))
    sends = [send(part, to) for to, part in chunk.items() if to != g.me]
    yield sends + (fold(chunk[g.me], g.ranks, g.me) if g.me in chunk else [])
