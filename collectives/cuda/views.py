"""What a caller may pass that lies on a device: torch tensors, CuPy arrays, anything that says so as they do."""

import sys
from math import prod
from typing import Any

from collectives.buffers import View, torch_dtypes
from collectives.cuda.driver import Driver
from collectives.cuda.source import ELEMENTS
from collectives.dtypes import ITEMSIZE
from collectives.errors import UnsupportedError

KINDS = {"f": "float", "i": "int", "u": "uint"}


def on_device(x: Any) -> bool:
    """Whether x is for collectives on devices. Costs little: most calls ask."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return bool(x.is_cuda)
    if isinstance(x, list | tuple):
        return bool(x) and on_device(x[0])
    return hasattr(type(x), "__cuda_array_interface__")


def no_counts(*counts: Any) -> None:
    """UnsupportedError for an alltoall of a GPU's memory whose blocks have lengths of their own."""
    if any(each is not None for each in counts):
        raise UnsupportedError("alltoall with counts is for memory of the host; pass x.cpu(), or equal blocks")


def view(x: Any, driver: Driver, device: int, name: str = "x", writes: bool = False) -> View:
    """The memory of x on the device.

    TypeError for another kind or dtype, ValueError for a layout or another device, BufferError for what is read-only,
    UnsupportedError for memory that is not a device's own.
    """
    torch = sys.modules.get("torch")
    if not on_device(x):
        raise TypeError(f"{name} is memory of the host, and the call's other array is on a GPU; pass both on the GPU")
    if torch is not None and isinstance(x, torch.Tensor):
        found = _of_tensor(x, name)
    else:
        found = _of_interface(x, name)
    if writes and not found.writable:
        raise BufferError(f"{name} is read-only, and would be written; pass a writable array, or out=")
    if found.dtype not in ELEMENTS:
        raise UnsupportedError(f"{name} has dtype {found.dtype}; on a GPU there are {', '.join(ELEMENTS)}")
    if found.count:
        owner = driver.owner(found.address)
        if owner.device != device:
            raise ValueError(
                f"{name} is on GPU {owner.device}, and this communicator works on GPU {device}: a communicator has one "
                "GPU, that of its first call; make another one"
            )
        if not owner.exportable:
            raise UnsupportedError(f"{name} is managed memory or the host's; pass memory of the device (cudaMalloc)")
        if found.address % found.itemsize:
            raise ValueError(f"{name} begins at an address that is no multiple of {found.itemsize} bytes; pass a copy")
    return found


def _of_tensor(x: Any, name: str) -> View:
    x = x.detach()
    if not x.is_contiguous() or x.is_neg() or x.is_conj():
        raise ValueError(f"{name} is not contiguous; pass {name}.contiguous()")
    try:
        dtype, itemsize = torch_dtypes()[x.dtype]
    except KeyError:
        raise TypeError(f"{name} has dtype {x.dtype}, which is not reduced; there are {', '.join(ELEMENTS)}") from None
    return View(x.data_ptr(), x.numel(), dtype, itemsize, x)


def _of_interface(x: Any, name: str) -> View:
    about = x.__cuda_array_interface__
    kind, itemsize = about["typestr"][1], int(about["typestr"][2:])
    dtype = "bfloat16" if str(getattr(x, "dtype", "")) == "bfloat16" else f"{KINDS.get(kind, kind)}{8 * itemsize}"
    if dtype not in ITEMSIZE:
        known = ", ".join(ELEMENTS)
        raise TypeError(f"{name} has elements of {about['typestr']}, which are not reduced; there are {known}")
    expected = itemsize
    strides = about.get("strides") or ()
    for size, stride in zip(reversed(about["shape"]), reversed(strides), strict=False):  # no strides: contiguous
        if size > 1 and stride != expected:
            raise ValueError(f"{name} is not contiguous; pass a contiguous array")
        expected *= size
    address, read_only = about["data"]
    return View(address, prod(about["shape"]), dtype, itemsize, x, not read_only)
