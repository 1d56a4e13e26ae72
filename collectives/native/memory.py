"""Raw memory, atomics and calls by address, for compiled code.

With `vectors.py` this is the only place that knows LLVM. Addresses, lengths and handles are int64 everywhere: run-time
arguments, never globals, so that what Numba compiles can be cached and used by later processes.
"""

# ruff: noqa: ARG001 - Numba names an intrinsic's parameters, and hands its code generator four, needed or not
import platform
import time
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

__all__ = [
    "call_convert",
    "call_kernel",
    "call_step",
    "call_test",
    "call_transfer",
    "cold",
    "copy",
    "fence",
    "fetch_add",
    "inlined",
    "load_acquire",
    "load_relaxed",
    "native",
    "now_ns",
    "pause",
    "sched_yield",
    "store_relaxed",
    "store_release",
    "words",
]

cold: dict[str, Any] = {"nogil": True, "error_model": "numpy"}  # rarely run: stays a call
inlined: dict[str, Any] = {**cold, "forceinline": True}  # helpers of any file: no signature, no cache of their own
native: dict[str, Any] = {**cold, "cache": True}  # what Python or C calls: explicit signature, helpers inside

INT32, INT64, VOID = ir.IntType(32), ir.IntType(64), ir.VoidType()
_PAUSES = {
    "x86_64": ("llvm.x86.sse2.pause", ()),
    "AMD64": ("llvm.x86.sse2.pause", ()),
    "aarch64": ("llvm.aarch64.hint", (1,)),
    "arm64": ("llvm.aarch64.hint", (1,)),
}


def intrinsic(define: Callable[..., Any]) -> Any:
    """Numba's intrinsic, called from compiled code without the typing context that its definition takes first."""
    return extending.intrinsic(define)


def pointer(builder: Any, address: Any, to: Any = INT64) -> Any:
    """An int64 address as a pointer of the LLVM type `to`."""
    return builder.inttoptr(address, to.as_pointer())


# ---------------------------------------------------------------- words and atomics
@intrinsic
def words(typing: Any, address: Any) -> Any:
    """View an address as int64 memory: words(a)[i] reads and writes the i-th word."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return pointer(builder, args[0])

    return types.CPointer(types.int64)(types.int64), code


def _load(order: str) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(pointer(builder, args[0]), order, 8)

    return types.int64(types.int64), code


def _store(order: str) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], pointer(builder, args[0]), order, 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


@intrinsic
def load_acquire(typing: Any, address: Any) -> Any:
    """The word at an 8-byte aligned address; later reads and writes stay behind it."""
    return _load("acquire")


@intrinsic
def store_release(typing: Any, address: Any, value: Any) -> Any:
    """Write the word at an 8-byte aligned address; earlier reads and writes stay before it."""
    return _store("release")


@intrinsic
def load_relaxed(typing: Any, address: Any) -> Any:
    """The word at an 8-byte aligned address, whole, and read again at each call; orders nothing."""
    return _load("monotonic")


@intrinsic
def store_relaxed(typing: Any, address: Any, value: Any) -> Any:
    """Write the word at an 8-byte aligned address, whole; orders nothing."""
    return _store("monotonic")


@intrinsic
def fetch_add(typing: Any, address: Any, value: Any) -> Any:
    """Add to the word at an 8-byte aligned address (acquire and release); returns what was there before."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", pointer(builder, args[0]), args[1], "acq_rel")

    return types.int64(types.int64, types.int64), code


@intrinsic
def fence(typing: Any) -> Any:
    """A full barrier, non-temporal stores included."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), code


@intrinsic
def pause(typing: Any) -> Any:
    """The processor's hint for a waiting loop (no inline assembly: LLVM's parser for it is not initialised)."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if platform.machine() in _PAUSES:
            name, hints = _PAUSES[platform.machine()]
            function = ir.FunctionType(VOID, [INT32] * len(hints))
            callee = cgutils.get_or_insert_function(builder.module, function, name)
            builder.call(callee, [INT32(hint) for hint in hints])
        return context.get_dummy_value()

    return types.void(), code


# ---------------------------------------------------------------- calls by address
def _call(arguments: int, result: Any) -> Any:
    """A C call of int64 arguments. A C int or a 4-byte handle is read from the low half of its register."""
    returns = {types.int32: INT32, types.int64: INT64, types.void: VOID}[result]

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out = builder.call(pointer(builder, args[0], ir.FunctionType(returns, [INT64] * arguments)), args[1:])
        return context.get_dummy_value() if result is types.void else out

    return result(*[types.int64] * (arguments + 1)), code


@intrinsic
def call_transfer(
    typing: Any, function: Any, buffer: Any, count: Any, datatype: Any, peer: Any, tag: Any, comm: Any, request: Any
) -> Any:
    """MPI_Isend or MPI_Irecv at `function`, with handles of 4 or 8 bytes alike; returns MPI's code."""
    return _call(7, types.int32)


@intrinsic
def call_test(typing: Any, function: Any, request: Any, flag: Any, status: Any) -> Any:
    """MPI_Test at `function`: addresses of the request, of a C int, of a status; returns MPI's code."""
    return _call(3, types.int32)


@intrinsic
def call_kernel(typing: Any, function: Any, target: Any, operands: Any, n: Any, count: Any, weights: Any) -> Any:
    """A reduction kernel, as `kernels.kernel` gives its address."""
    return _call(5, types.void)


@intrinsic
def call_convert(typing: Any, function: Any, target: Any, source: Any, count: Any) -> Any:
    """A conversion, as `kernels.convert` gives its address."""
    return _call(3, types.void)


@intrinsic
def call_step(typing: Any, function: Any, state: Any, row: Any, step: Any) -> Any:
    """A fused kernel as a resumable step: moves one piece and returns 1, 0 if it must wait, negative on error."""
    return _call(3, types.int64)


sched_yield: Any = types.ExternalFunction("sched_yield", types.int32())


# ---------------------------------------------------------------- time and copies
@intrinsic
def now_ns(typing: Any) -> Any:
    """CLOCK_MONOTONIC in nanoseconds, the clock of time.monotonic_ns()."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        timespec = cgutils.alloca_once(builder, INT64, size=2)
        function = ir.FunctionType(INT32, [INT32, INT64.as_pointer()])
        callee = cgutils.get_or_insert_function(builder.module, function, "clock_gettime")
        builder.call(callee, [INT32(time.CLOCK_MONOTONIC), timespec])
        seconds, rest = (builder.load(cgutils.gep_inbounds(builder, timespec, k)) for k in (0, 1))
        return builder.add(builder.mul(seconds, INT64(1_000_000_000)), rest)

    return types.int64(), code


@intrinsic
def copy(typing: Any, target: Any, source: Any, n_bytes: Any) -> Any:
    """Copy between places that do not overlap, by libc's memcpy (faster than a loop of vectors from 64 bytes on)."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, come = (pointer(builder, args[k], ir.IntType(8)) for k in (0, 1))
        cgutils.raw_memcpy(builder, to, come, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), code
