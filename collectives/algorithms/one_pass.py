"""One pass: on symmetric memory everyone reads and writes everyone's memory, and nothing lies in between.

The schedule twins of the kernels in native/one_pass.py, and what serves where memory is not symmetric.
"""

from collections.abc import Iterator

from collectives.algorithms import direct
from collectives.schedule import INPUT, OUTPUT, SCRATCH, WHOLE, Group, Round, Span, fold, recv, send


def allreduce(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Everyone folds one chunk of all ranks' data in rank order, and writes it to all of them.

    On symmetric memory nothing is staged: each operand is read once, each result written once.
    Cost: 2 alpha + 2 n (p-1)/p beta + n (p-1)/p gamma.
    Serves: any number of ranks; a fixed order.
    Paper: Shah et al., MSCCL++: Rethinking GPU communication abstractions for AI inference, 2025 (all-pairs).
    """
    yield from direct.two_shot(g, span)


def reduce_scatter(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Everyone folds its own chunk of all ranks' data in rank order.

    On symmetric memory nothing is staged.
    Cost: alpha + n (p-1)/p beta + n (p-1)/p gamma.
    Serves: any number of ranks; a fixed order.
    Paper: Shah et al., MSCCL++: Rethinking GPU communication abstractions for AI inference, 2025 (all-pairs).
    """
    yield from direct.reduce_scatter(g, span)


def allgather(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Everyone sends its chunk to everyone.

    On symmetric memory each rank writes it where it belongs.
    Cost: alpha + n (p-1)/p beta.
    Serves: any number of ranks.
    Paper: Shah et al., MSCCL++: Rethinking GPU communication abstractions for AI inference, 2025 (all-pairs).
    """
    yield from direct.allgather(g, span)


def broadcast(g: Group, span: Span = WHOLE, root: int = 0) -> Iterator[Round]:
    """Root sends its message to everyone.

    On symmetric memory all ranks read it at once, where it lies, and root writes a part of it to each.
    Cost: alpha + (p-1) n beta.
    Serves: any number of ranks, any root.
    Paper: Chai, Hartono and Panda, Designing high performance and scalable MPI intra-node communication, 2006.
    """
    source = g.ranks[root]
    yield [send(span, to) for to in g.ranks if to != source] if g.me == source else [recv(span, source)]


def reduce(g: Group, span: Span = WHOLE, root: int = 0) -> Iterator[Round]:
    """Everyone folds one chunk of all ranks' data in rank order, for root.

    All ranks share the work of folding, and on symmetric memory write its results to root's memory.
    Cost: 2 alpha + 2 n (p-1)/p beta + n (p-1)/p gamma.
    Serves: any number of ranks, any root; a fixed order.
    Paper: Rabenseifner, Optimization of collective reduction operations, 2004 (reduce-scatter, then gather).
    """
    chunk, target = dict(zip(g.ranks, span.split(g.size), strict=True)), g.ranks[root]
    mine = OUTPUT if g.me == target else SCRATCH
    yield [send(chunk[to], to, INPUT) for to in g.ranks if to != g.me] + fold(chunk[g.me], g.ranks, g.me, mine, INPUT)
    if g.me == target:
        yield [recv(chunk[source], source, OUTPUT) for source in g.ranks if source != g.me]
    else:
        yield [send(chunk[g.me], target, SCRATCH)]
