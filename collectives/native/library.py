"""The compiled entry points, loaded once a process."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from collectives.native.cache import compiling

ADVANCE_NS = 2_000_000  # a turn: how long compiled code runs before Python may see an interrupt


class Library(NamedTuple):
    run: Callable[[int, int, int], int]
    start: Callable[[int, int, int], None]
    advance: Callable[[int, int, int], int]
    leave: Callable[[int], int]
    note_weights: int
    fused: tuple[int, ...]  # the node kernels, in layout's order


def entry(function: Any) -> Callable[..., Any]:
    """The compiled entry point itself: half the cost of going through the dispatcher's type resolution."""
    return function.overloads[function.signatures[0]].entry_point


@cache
def library() -> Library:
    with compiling("executor"):
        from collectives.native import board, executor, fused, levels, one_pass, single_copy, staged, weights
    run, start, advance, leave = map(entry, (executor.run, executor.start, executor.advance, board.leave))
    kernels = (
        fused.one_shot, staged.staged, single_copy.single_copy,
        one_pass.allreduce, one_pass.reduce_scatter, one_pass.allgather, one_pass.broadcast, one_pass.reduce,
        levels.reduce_scatter, levels.allgather,
    )  # fmt: skip
    fused_at = tuple(int(each.address or 0) for each in kernels)
    return Library(run, start, advance, leave, int(weights.note_weights.address or 0), fused_at)


@cache
def kernel(dtype: str, op: str, many: bool = False) -> int:
    """Address of the reduction kernel; many: of the one that writes as many targets as there are operands."""
    with compiling(f"{dtype}-{op}{'-many' * many}"):
        from collectives.native import kernels

        return kernels.kernel(dtype, op, many)


@cache
def convert(source: str, target: str) -> int:
    """Address of the conversion kernel."""
    with compiling(f"{source}-to-{target}"):
        from collectives.native import kernels

        return kernels.convert(source, target)
