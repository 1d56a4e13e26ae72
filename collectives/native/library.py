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
    note_weights: int
    fused: tuple[int, ...]  # the node kernels, in layout's order


def entry(function: Any) -> Callable[..., Any]:
    """The compiled entry point itself: half the cost of going through the dispatcher's type resolution."""
    return function.overloads[function.signatures[0]].entry_point


@cache
def library() -> Library:
    with compiling("executor"):
        from collectives.native import executor, fused, one_pass, single_copy, staged, weights
    run, start, advance = map(entry, (executor.run, executor.start, executor.advance))
    kernels = (fused.one_shot, staged.staged, single_copy.single_copy, one_pass.one_pass)
    fused_at = tuple(int(each.address or 0) for each in kernels)
    return Library(run, start, advance, int(weights.note_weights.address or 0), fused_at)


@cache
def kernel(dtype: str, op: str) -> int:
    """Address of the reduction kernel."""
    with compiling(f"{dtype}-{op}"):
        from collectives.native import kernels

        return kernels.kernel(dtype, op)


@cache
def convert(source: str, target: str) -> int:
    """Address of the conversion kernel."""
    with compiling(f"{source}-to-{target}"):
        from collectives.native import kernels

        return kernels.convert(source, target)
