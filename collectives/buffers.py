"""What a caller may pass: torch tensors, anything with the buffer protocol, anything with DLPack on the CPU."""

import ctypes
import sys
from array import array
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from collectives import arrays
from collectives.arrays import DLPACK_KINDS, Array, DLTensor
from collectives.dtypes import DTYPES, ITEMSIZE
from collectives.errors import UnsupportedError

FORMATS = {
    "e": "float16", "f": "float32", "d": "float64", "b": "int8", "h": "int16", "i": "int32", "q": "int64",
    "B": "uint8", "H": "uint16", "I": "uint32", "Q": "uint64",
}  # fmt: skip
TYPECODES = {name: code for code, name in FORMATS.items() if code != "e"}
DLPACK_CPU = (1, 3, 11)  # kDLCPU, kDLCUDAHost, kDLROCMHost
DLPACK_NOT_ITS_OWN = 3  # flags: read-only, or a copy


@dataclass
class View:
    """Contiguous memory of `count` elements; `owner` keeps it alive, `restore` writes it back where it is a copy."""

    address: int
    count: int
    dtype: str
    itemsize: int
    owner: Any
    writable: bool = True
    original: Any = None  # the caller's strided tensor, of which `owner` is a contiguous copy

    @property
    def n_bytes(self) -> int:
        return self.count * self.itemsize

    def overlaps(self, other: "View") -> bool:
        return (
            self.count > 0
            and other.count > 0
            and self.address < other.address + other.n_bytes
            and other.address < self.address + self.n_bytes
        )

    def restore(self) -> None:
        if self.original is not None:
            self.original.copy_(self.owner)


@cache
def torch_dtypes() -> dict[Any, tuple[str, int]]:
    """torch's dtypes: (name, bytes). Only called where torch is loaded already."""
    torch = sys.modules["torch"]
    found = ((getattr(torch, name, None), name) for name in DTYPES)
    return {dtype: (name, dtype.itemsize) for dtype, name in found if dtype is not None}


def view(x: Any, name: str = "x", writes: bool = False) -> View:
    """The memory of `x`; `writes` if it is to be written. `name` is what errors call it.

    TypeError for what is no array or has a dtype that cannot be reduced, BufferError for read-only memory that is to be
    written, ValueError for a layout that cannot be served, UnsupportedError for memory of another device.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _of_tensor(torch, x, name, writes)
    if isinstance(x, Array):
        return View(ctypes.addressof(x), prod(x.shape), x.dtype, ITEMSIZE[x.dtype], x)  # type: ignore[arg-type]
    found = _of_dlpack(x, name) if _has_only_dlpack(x) else _of_buffer(x, name)
    if writes and not found.writable:
        raise BufferError(f"{name} is read-only, and would be written; pass a writable buffer, or out=")
    return found


def _of_tensor(torch: Any, x: Any, name: str, writes: bool) -> View:
    if x.layout is not torch.strided:
        raise TypeError(f"{name} is a {x.layout} tensor; pass a dense one ({name}.to_dense())")
    if x.device.type != "cpu":
        raise UnsupportedError(f"{name} is on {x.device}; only CPU memory is served here: pass {name}.cpu()")
    try:
        dtype, itemsize = torch_dtypes()[x.dtype]
    except KeyError:
        known = ", ".join(DTYPES)
        mend = "; torch.view_as_real(x) serves for a sum" if x.dtype.is_complex else ""
        raise TypeError(f"{name} has dtype {x.dtype}, which is not reduced; there are {known}{mend}") from None
    original = None
    x = x.detach()
    if not x.is_contiguous() or x.is_neg() or x.is_conj():
        if writes and has_internal_overlap(x):
            raise ValueError(f"{name} is an expanded tensor, whose elements share memory; pass {name}.contiguous()")
        x, original = x.contiguous().resolve_neg().resolve_conj(), x
    address, count = x.data_ptr(), x.numel()
    if not address and count:
        raise TypeError(f"{name} is a tensor without memory (a fake one, or all zeros); pass {name}.clone()")
    return View(address, count, dtype, itemsize, x, True, original if writes else None)


def has_internal_overlap(x: Any) -> bool:
    """Whether elements of a strided tensor may share memory."""
    reach = 1
    for stride, size in sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n > 1):
        if stride < reach:
            return True
        reach += stride * (size - 1)
    return False


def _has_only_dlpack(x: Any) -> bool:
    if not hasattr(x, "__dlpack__"):
        return False
    try:
        memoryview(x).release()
    except (TypeError, ValueError, BufferError):
        return True
    return False


def _of_buffer(x: Any, name: str) -> View:
    try:
        memory = memoryview(x)
    except TypeError:
        what = type(x).__name__
        mend = "a torch tensor, array.array, memoryview, or anything with the buffer protocol or DLPack"
        raise TypeError(f"{name} is a {what}, which holds no memory that can be shared; pass {mend}") from None
    code = memory.format.lstrip("@=<")
    if code in ("l", "L"):
        code = {"l": "q", "L": "Q"}[code] if memory.itemsize == 8 else {"l": "i", "L": "I"}[code]
    if code not in FORMATS:
        known = ", ".join(FORMATS.values())
        raise TypeError(f"{name} has elements of format {memory.format!r}, which are not reduced; there are {known}")
    if not memory.c_contiguous:
        raise ValueError(f"{name} is not contiguous; pass a contiguous buffer")
    n_bytes = memory.nbytes
    address = _address(memory, n_bytes)
    return View(address, n_bytes // memory.itemsize, FORMATS[code], memory.itemsize, memory, not memory.readonly)


class _PyBuffer(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    ]  # fmt: skip


def _address(memory: memoryview, n_bytes: int) -> int:
    """Address of a memoryview's first byte, read-only or not. The memoryview keeps it where it is."""
    if n_bytes == 0:
        return 0
    held = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), ctypes.byref(held), 0)
    address = held.buf
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(held))
    return int(address or 0)


def _of_dlpack(x: Any, name: str) -> View:
    device = x.__dlpack_device__()
    if device[0] not in DLPACK_CPU:
        raise UnsupportedError(f"{name} is on DLPack device {tuple(device)}; only CPU memory is served here")
    try:
        capsule = x.__dlpack__(max_version=(1, 0))
    except TypeError:  # older than versions
        capsule = x.__dlpack__()
    tensor, flags = _inside(capsule, name)
    dtype = f"{DLPACK_KINDS.get(tensor.code, 'unknown')}{tensor.bits}"
    if dtype not in DTYPES or tensor.lanes != 1:
        raise TypeError(f"{name} has DLPack dtype {dtype}, which is not reduced; there are {', '.join(DTYPES)}")
    count, packed = 1, True
    for i in reversed(range(tensor.ndim)):
        packed = packed and (not tensor.strides or tensor.shape[i] == 1 or tensor.strides[i] == count)
        count *= tensor.shape[i]
    if not packed and count:
        raise ValueError(f"{name} is not contiguous; pass a contiguous array")
    address = int(tensor.data or 0) + tensor.byte_offset
    return View(address, count, dtype, tensor.bits // 8, (x, capsule), not flags & DLPACK_NOT_ITS_OWN)


def _inside(capsule: Any, name: str) -> tuple[DLTensor, int]:
    """What a DLPack capsule holds, and its flags."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    if not ctypes.pythonapi.PyCapsule_IsValid(ctypes.py_object(capsule), b"dltensor_versioned"):
        return DLTensor.from_address(get(capsule, b"dltensor")), 0
    address = get(capsule, b"dltensor_versioned")
    major = ctypes.c_uint32.from_address(address).value
    if major != 1:
        raise UnsupportedError(f"{name} comes by DLPack {major}; DLPack 1 and what was before it are served")
    return DLTensor.from_address(address + 32), ctypes.c_uint64.from_address(address + 24).value


def like(x: Any, found: View, count: int) -> Any:
    """A new array of `count` elements, one-dimensional, of the kind and dtype of `x`."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return torch.empty(count, dtype=x.dtype)
    if isinstance(x, Array):
        return arrays.new(found.dtype, (count,))
    if found.dtype in TYPECODES:
        if isinstance(x, array):
            return array(x.typecode, bytes(count * found.itemsize))
        code: Any = TYPECODES[found.dtype]
        return memoryview(bytearray(count * found.itemsize)).cast(code)
    raise TypeError(f"there is no array of {found.dtype} without torch; pass out=")
