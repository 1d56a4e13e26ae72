"""Algorithms: pure functions that emit schedules, and their registry.

An algorithm in twenty lines: write a generator of rounds, and register it. What is registered is verified, drawn, tuned
and run like all others. Another distribution's algorithms come in through its entry point in `treering.algorithms`.
"""

import sys
from collections.abc import Sequence
from types import ModuleType

from collectives.algorithms import (
    alltoall,
    bruck,
    direct,
    double_tree,
    doubling,
    gather,
    halving,
    hierarchical,
    kary,
    nested,
    one_pass,
    radix,
    ring,
    swing,
    themis,
    torus,
    tree,
)
from collectives.algorithms.registry import (
    KERNEL_BYTES,
    SEGMENT_BYTES,
    SLOTS,
    Algorithm,
    Parameter,
    every,
    find,
    names,
    register,
)
from collectives.schedule import Group, Span

__all__ = [
    "KERNEL_BYTES", "SEGMENT_BYTES", "SLOTS", "Algorithm", "Parameter", "every", "find", "names", "register",
]  # fmt: skip


def whole(_: Group, span: Span) -> Sequence[Span]:
    """A pipeline's segment is a part of the message."""
    return [span]


def chunks(g: Group, span: Span) -> Sequence[Span]:
    """A pipeline's segment is a part of every chunk."""
    return span.split(g.size)


PIPELINE = (SEGMENT_BYTES, SLOTS)
STAGED = (Parameter(KERNEL_BYTES, (1 << 14, 1 << 16), 1 << 14, "of a piece in the node's kernel, which stages it"),)
COPIED = (Parameter(KERNEL_BYTES, (1 << 17, 1 << 16), 1 << 17, "of a piece in the node's kernel, copied once"),)
NODES = (
    Parameter("inner", tuple(hierarchical.INNER), "ring", "the allreduce between nodes"),
    Parameter(
        "leaders",
        (hierarchical.ALL, hierarchical.ONE, 2),
        hierarchical.ALL,
        "who takes part in it: all ranks, or the first ones of each node",
        least=2,
    ),
)
LEVELS = (
    Parameter(
        "levels",
        (
            "direct:ring",
            "ring:ring",
            "direct:halving_doubling",
            "bruck:recursive_doubling",
            "binomial_tree:double_tree",
        ),
        "direct:ring",
        "of each level, from the innermost outwards, a reduce_scatter or a reduce; of the last one an allreduce",
        form=r"\w+(:\w+)*",
    ),
)
SPEEDS = (
    Parameter("level", ("direct", "ring"), "direct", "the reduce_scatter along each dimension", form=r"\w+"),
    Parameter(
        "speeds", (1, 2, 8), 1, "of levels' links: how many times as fast as the next one out", form=r"\d+(:\d+)*"
    ),
)

KNOMIAL = (Parameter("radix", (4, 3, 8), 4, "of the tree: how many places a digit has", least=2),)
KARY = (Parameter("radix", (2, 3, 4), 2, "of the tree: the most children"),)
FACTORS = (Parameter("radix", (2, 4, 8), 2, "the largest factor of p that is taken, where there is one", least=2),)
WEIGHTS = (Parameter("weights", (direct.EQUAL,), direct.EQUAL, "of ranks' chunks", form=r"\d+(:\d+)*"),)

for algorithm in (
    Algorithm("allreduce", "ring", ring.allreduce, PIPELINE, chunks),
    Algorithm("allreduce", "recursive_doubling", doubling.allreduce, PIPELINE, whole),
    Algorithm("allreduce", "halving_doubling", halving.allreduce, PIPELINE, whole),
    Algorithm("allreduce", "binomial_tree", tree.allreduce, PIPELINE, whole),
    Algorithm("allreduce", "double_tree", double_tree.allreduce, PIPELINE),
    Algorithm("allreduce", "one_shot", direct.one_shot, PIPELINE, whole),
    Algorithm("allreduce", "two_shot", direct.two_shot, STAGED + PIPELINE, chunks),
    Algorithm("allreduce", "single_copy", direct.single_copy, COPIED + PIPELINE, chunks),
    Algorithm("allreduce", "hierarchical", hierarchical.allreduce, NODES + PIPELINE, needs_nodes=True),
    Algorithm("allreduce", "one_pass", one_pass.allreduce, PIPELINE, chunks, symmetric=True),
    Algorithm("allreduce", "bidirectional_ring", ring.bidirectional, PIPELINE),
    Algorithm("allreduce", "torus", torus.allreduce, PIPELINE),
    Algorithm("allreduce", "mixed_radix", radix.allreduce, FACTORS + PIPELINE, whole),
    Algorithm("allreduce", "bruck", bruck.allreduce, PIPELINE, whole),
    Algorithm("allreduce", "pat", bruck.pat_allreduce, PIPELINE, chunks),
    Algorithm("allreduce", "swing", swing.allreduce, PIPELINE, whole, even=True),
    Algorithm("allreduce", "knomial_tree", kary.knomial_allreduce, KNOMIAL + PIPELINE, whole),
    Algorithm("allreduce", "kary_tree", kary.kary_allreduce, KARY + PIPELINE, whole),
    Algorithm("allreduce", "chain", kary.chain_allreduce, PIPELINE, whole),
    Algorithm("allreduce", "linear", kary.linear_allreduce, PIPELINE, whole),
    Algorithm("allreduce", "weighted", direct.weighted, WEIGHTS + PIPELINE, whole),
    Algorithm("allreduce", "nested", nested.allreduce, LEVELS + PIPELINE, whole, needs_nodes=True, nested=True),
    Algorithm("allreduce", "themis", themis.allreduce, SPEEDS + PIPELINE, needs_nodes=True, nested=True, regular=True),
    Algorithm("reduce_scatter", "ring", ring.reduce_scatter, PIPELINE, chunks),
    Algorithm("reduce_scatter", "direct", direct.reduce_scatter, STAGED + PIPELINE, chunks),
    Algorithm("reduce_scatter", "one_pass", one_pass.reduce_scatter, PIPELINE, chunks, symmetric=True),
    Algorithm("reduce_scatter", "mixed_radix", radix.reduce_scatter, FACTORS),
    Algorithm("reduce_scatter", "bruck", bruck.reduce_scatter),
    Algorithm("reduce_scatter", "pat", bruck.pat_reduce_scatter, PIPELINE, chunks),
    Algorithm("allgather", "ring", ring.allgather, PIPELINE, chunks),
    Algorithm("allgather", "bruck", bruck.allgather),
    Algorithm("allgather", "direct", direct.allgather, STAGED + PIPELINE, chunks),
    Algorithm("allgather", "single_copy", direct.single_copy_allgather, COPIED + PIPELINE, chunks),
    Algorithm("allgather", "one_pass", one_pass.allgather, PIPELINE, chunks, symmetric=True),
    Algorithm("allgather", "mixed_radix", radix.allgather, FACTORS),
    Algorithm("allgather", "pat", bruck.pat_allgather, PIPELINE, chunks),
    Algorithm("reduce", "binomial_tree", tree.reduce, PIPELINE, whole),
    Algorithm("reduce", "direct", direct.reduce, STAGED + PIPELINE, whole),
    Algorithm("reduce", "two_shot", direct.reduce_two_shot, STAGED + PIPELINE, chunks),
    Algorithm("broadcast", "binomial_tree", tree.broadcast, PIPELINE, whole),
    Algorithm("reduce", "one_pass", one_pass.reduce, PIPELINE, chunks, symmetric=True),
    Algorithm("reduce", "mixed_radix", radix.reduce, FACTORS + PIPELINE, whole),
    Algorithm("reduce", "double_tree", double_tree.reduce, PIPELINE),
    Algorithm("reduce", "knomial_tree", kary.knomial_reduce, KNOMIAL + PIPELINE, whole),
    Algorithm("reduce", "kary_tree", kary.kary_reduce, KARY + PIPELINE, whole),
    Algorithm("reduce", "chain", kary.chain_reduce, PIPELINE, whole),
    Algorithm("broadcast", "direct", direct.broadcast, STAGED + PIPELINE, whole),
    Algorithm("broadcast", "scatter_allgather", tree.scatter_allgather, PIPELINE, whole),
    Algorithm("broadcast", "one_pass", one_pass.broadcast, PIPELINE, whole, symmetric=True),
    Algorithm("broadcast", "double_tree", double_tree.broadcast, PIPELINE),
    Algorithm("broadcast", "knomial_tree", kary.knomial_broadcast, KNOMIAL + PIPELINE, whole),
    Algorithm("broadcast", "kary_tree", kary.kary_broadcast, KARY + PIPELINE, whole),
    Algorithm("broadcast", "chain", kary.chain_broadcast, PIPELINE, whole),
    Algorithm("gather", "direct", gather.gather_direct),
    Algorithm("gather", "binomial_tree", gather.gather),
    Algorithm("scatter", "direct", gather.scatter_direct),
    Algorithm("scatter", "binomial_tree", gather.scatter),
    Algorithm("alltoall", "direct", alltoall.direct),
    Algorithm("alltoall", "pairwise", alltoall.pairwise),
    Algorithm("alltoall", "bruck", alltoall.bruck, forwards=True),
    Algorithm("barrier", "dissemination", bruck.barrier),
):
    register(algorithm)


class _Callable(ModuleType):
    """`collectives.algorithms("allreduce")` gives the names that `algorithm=` takes."""

    def __call__(self, collective: str = "allreduce") -> tuple[str, ...]:
        return names(collective)


sys.modules[__name__].__class__ = _Callable
