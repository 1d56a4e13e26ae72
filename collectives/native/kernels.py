"""Reduction kernels, one for each (dtype, operation): target[i] = ((a[i] + b[i]) + c[i]) + ..., in one pass.

Operands are folded in their declared order, however many there are, a block of lanes at a time in registers: float16
and bfloat16 are accumulated in float32 and rounded once. The bits of the result do not depend on which of the first
two operands comes first: NaN is canonical, min and max let NaN through and order -0 below +0, integers wrap. `avg` is
the weighted mean (w0 a + w1 b + ...) / (w0 + w1 + ...), and neither overflows nor underflows.

A kernel is compiled at its first use and cached on disk under a name of its own. (Numba numbers the files of one
function's cache: two processes that stored different kernels under one name at once could each load the other's. And
what a kernel closes over must be plain data: Numba's own objects are pickled differently in each process.)
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from numba import cfunc, njit

from collectives.dtypes import FLOATS, HALVES, ITEMSIZE, check
from collectives.native.memory import copy, inlined, native, words
from collectives.native.vectors import kind, load, reduce, store


# ---------------------------------------------------------------- kernels
def _lanes(dtype: str) -> int:
    """Lanes of one 64-byte vector, in which halves are float32."""
    return 64 // max(ITEMSIZE[dtype], 4 if dtype in FLOATS else 1)


@njit(**inlined)
def put(kind: Any, many: Any, target: Any, n: Any, at: Any, vector: Any) -> None:
    """Store at byte `at` of the target; of many, whose n addresses lie there, of each."""
    if many:
        for k in range(n):
            store(kind, words(target)[k] + at, vector)
    else:
        store(kind, target + at, vector)


def _reduction(dtype: str, op: str, many: bool) -> Callable[..., None]:
    size, lanes, wide = ITEMSIZE[dtype], _lanes(dtype), 4 * _lanes(dtype)
    averages = op == "avg"

    def body(target: Any, operands: Any, n: Any, count: Any, weights: Any) -> None:
        if n == 1:
            copy(words(target)[0] if many else target, words(operands)[0], count * size)
            return
        whole = 0
        for k in range(n if averages else 0):
            whole += words(weights)[k]
        one, vector, block = kind(dtype, op, 1), kind(dtype, op, lanes), kind(dtype, op, wide)
        if count < lanes:
            for at in range(0, count * size, size):
                put(one, many, target, n, at, reduce(one, operands, n, at, weights, whole))
            return
        last = (count - lanes) * size  # computed first: in place, it may overlap vectors that are written before it
        rest = reduce(vector, operands, n, last, weights, whole)
        at = 0
        while at <= last - (wide - lanes) * size:
            put(block, many, target, n, at, reduce(block, operands, n, at, weights, whole))
            at += wide * size
        while at < last:
            put(vector, many, target, n, at, reduce(vector, operands, n, at, weights, whole))
            at += lanes * size
        put(vector, many, target, n, last, rest)

    return body


def _conversion(source_dtype: str, target_dtype: str) -> Callable[..., None]:
    read, write, lanes = ITEMSIZE[source_dtype], ITEMSIZE[target_dtype], 64

    def body(target: Any, source: Any, count: Any) -> None:
        reads, writes = kind(source_dtype, "convert", lanes), kind(target_dtype, "convert", lanes)
        done = count // lanes * lanes
        for i in range(0, done, lanes):
            store(writes, target + i * write, load(reads, source + i * read))
        one, other = kind(source_dtype, "convert", 1), kind(target_dtype, "convert", 1)
        for i in range(done, count):
            store(other, target + i * write, load(one, source + i * read))

    return body


def _compile(body: Callable[..., None], name: str, arguments: int) -> Any:
    body.__name__ = body.__qualname__ = name
    return cfunc(f"void({','.join(['int64'] * arguments)})", **native)(body)


@cache
def _compiled(dtype: str, op: str, many: bool) -> Any:
    return _compile(_reduction(dtype, op, many), f"{op}_{dtype}{'_to_many' * many}", 5)


@cache
def _compiled_conversion(source: str, target: str) -> Any:
    return _compile(_conversion(source, target), f"{source}_to_{target}", 3)


def kernel(dtype: str, op: str, many: bool = False) -> int:
    """The address of `void(int64 target, int64 operands, int64 n, int64 count, int64 weights)`.

    `operands` is the address of n >= 1 addresses of `count` elements each, in their declared order; `weights`, for avg,
    that of n positive int64 weights that add up to less than 2**24. The target is one of the operands, or overlaps none
    of them. Elements need not be aligned. A single operand is copied as it is. many: `target` is the address of n
    addresses of targets, each of which is written. TypeError as `check`.
    """
    check(dtype, op)
    address: int = _compiled(dtype, op, many).address
    return address


def convert(source: str, target: str) -> int:
    """The address of `void(int64 target, int64 source, int64 count)`, from float16 or bfloat16 to float32 or back.

    The places do not overlap. Rounded to nearest even; NaN becomes the canonical one. TypeError for other dtypes.
    """
    if (source, target) not in [pair for half in HALVES for pair in ((half, "float32"), ("float32", half))]:
        raise TypeError(f"no conversion from {source!r} to {target!r}: float16 and bfloat16 go to float32 and back")
    address: int = _compiled_conversion(source, target).address
    return address
