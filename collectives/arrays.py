"""Arrays without torch or NumPy: memory with a dtype and a shape, given to others by the buffer protocol and by DLPack.

Python has no numbers of 16 bits with a fraction: the buffer protocol shows float16 and bfloat16 as uint16, their bits.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

from collectives.dtypes import ITEMSIZE

ELEMENTS: dict[str, Any] = {
    "float16": ctypes.c_uint16, "bfloat16": ctypes.c_uint16, "float32": ctypes.c_float, "float64": ctypes.c_double,
    "int8": ctypes.c_int8, "int16": ctypes.c_int16, "int32": ctypes.c_int32, "int64": ctypes.c_int64,
    "uint8": ctypes.c_uint8, "uint16": ctypes.c_uint16, "uint32": ctypes.c_uint32, "uint64": ctypes.c_uint64,
}  # fmt: skip
DLPACK_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}
DLPACK_CODES = {name: code for code, name in DLPACK_KINDS.items()}
CPU, CAPSULE = 1, b"dltensor"  # kDLCPU; the name of a capsule that nobody has taken


class Array:
    """What the ctypes arrays have that `array` makes: `dtype`, `shape`, parts along the first axis, and DLPack."""

    dtype: str
    shape: tuple[int, ...]

    def __getitem__(self, index: Any) -> Any:
        """An element or a row, or for a slice without a step an Array of the same memory."""
        if not isinstance(index, slice):
            return super().__getitem__(index)  # type: ignore[misc]
        start, stop, step = index.indices(len(self))  # type: ignore[arg-type]
        if step != 1:
            raise ValueError(f"a slice with step {step} is not contiguous; slices have step 1")
        row, rows = prod(self.shape[1:]) * ITEMSIZE[self.dtype], max(0, stop - start)
        return array(self, self.dtype, (rows, *self.shape[1:]), start * row if rows else 0)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        """A DLPack capsule of this memory, before versions, which all consumers take."""
        if stream is not None:
            raise BufferError("memory of the CPU has no stream; pass stream=None")
        return capsule(self)


def array(memory: Any, dtype: str, shape: Sequence[int], offset: int = 0) -> Any:
    """An Array over writable memory with the buffer protocol, which it keeps alive, from byte `offset` on."""
    return _kind(dtype, tuple(shape)).from_buffer(memory, offset)


def new(dtype: str, shape: Sequence[int]) -> Any:
    """An Array over memory of its own, zeroed."""
    return _kind(dtype, tuple(shape))()


def _kind(dtype: str, shape: tuple[int, ...]) -> Any:
    made = ELEMENTS[dtype]
    for size in reversed(shape or (1,)):
        made = made * size
    return type(
        "Array", (Array, made), {"dtype": dtype, "shape": shape, "_type_": made._type_, "_length_": made._length_}
    )


# ---------------------------------------------------------------- DLPack
class DLTensor(ctypes.Structure):
    """What a DLPack capsule holds. A versioned one has version, context, deleter and flags before it."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_lent: dict[int, Any] = {}  # what consumers hold, until they say that they are done


def _done(address: int) -> None:
    _lent.pop(address, None)


def _dropped(made: int) -> None:
    """A capsule ends: where nobody has taken what it holds, nobody will say that it is done."""
    valid, get, _ = _capsules()
    if valid(made, CAPSULE):
        _lent.pop(get(made, CAPSULE), None)


_DONE: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_done)
_DROPPED: Any = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_dropped)


@cache
def _capsules() -> tuple[Any, Any, Any]:
    """PyCapsule_IsValid, _GetPointer and _New. The first two take a capsule's address: one that ends is no object."""
    api = ctypes.pythonapi
    valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", api))
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return valid, get, make(("PyCapsule_New", api))


def capsule(x: Any) -> Any:
    """A DLPack capsule of an Array, which lives until its consumer is done with it."""
    shape = (ctypes.c_int64 * max(1, len(x.shape)))(*x.shape)
    code, bits = DLPACK_CODES[x.dtype.rstrip("0123456789")], 8 * ITEMSIZE[x.dtype]
    tensor = DLTensor(ctypes.addressof(x), CPU, 0, len(x.shape), code, bits, 1, shape, None, 0)
    managed = _Managed(tensor, None, ctypes.cast(_DONE, ctypes.c_void_p))
    address = ctypes.addressof(managed)
    _lent[address] = managed, shape, x
    return _capsules()[2](address, CAPSULE, ctypes.cast(_DROPPED, ctypes.c_void_p))
