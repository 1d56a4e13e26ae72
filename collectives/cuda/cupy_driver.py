"""CUDA by CuPy: each method is one call or two. Nothing here can run without a GPU."""

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from math import prod
from typing import Any, ParamSpec, TypeVar

import cupy
from cupy.cuda import driver, runtime

from collectives.cuda import source
from collectives.cuda.driver import MEND, DriverError, Owner, Properties
from collectives.dtypes import ITEMSIZE

P = ParamSpec("P")
R = TypeVar("R")
OLDEST_DRIVER = 12000
PORTABLE, MAPPED, NO_TIMING, NON_BLOCKING, ANY_DIRECTION, DEVICE_MEMORY = 1, 2, 2, 1, 4, 2


@contextmanager
def said(doing: str) -> Iterator[None]:
    """CUDA's errors as ours."""
    try:
        yield
    except (runtime.CUDARuntimeError, driver.CUDADriverError) as error:
        raise DriverError(f"cannot {doing}: {error}") from None


def named(method: Callable[P, R]) -> Callable[P, R]:
    """A method whose errors say what it was."""

    @wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with said(method.__name__.replace("_", " ")):
            return method(*args, **kwargs)

    return run


@cache
def module(dtype: str, op: str) -> Any:
    """The kernels of a dtype and an operation. CuPy keeps what it has compiled on disk."""
    return cupy.RawModule(code=source.text([(dtype, op)]), options=source.OPTIONS, backend="nvrtc")


class CupyDriver:
    """The Driver of a process with a GPU. DriverError where it has none."""

    def __init__(self) -> None:
        with said(f"use CUDA (is a driver there, and new enough for CuPy {cupy.__version__}? {MEND})"):
            found, version = runtime.getDeviceCount(), runtime.driverGetVersion()
        if not found or version < OLDEST_DRIVER:
            what = f"{found} GPUs, with a driver for CUDA {version / 1000:.1f}"
            raise DriverError(f"{what}: at least one, and a driver for {OLDEST_DRIVER / 1000:.1f} or newer, are needed")

    @named
    def properties(self, device: int) -> Properties:
        about = runtime.getDeviceProperties(device)
        name = about["name"].decode() if isinstance(about["name"], bytes) else about["name"]
        return Properties(
            name, about["multiProcessorCount"], 10 * about["major"] + about["minor"],
            runtime.deviceGetPCIBusId(device), runtime.driverGetVersion(),
        )  # fmt: skip

    @named
    def use(self, device: int) -> None:
        runtime.setDevice(device)

    @named
    def owner(self, address: int) -> Owner:
        about = runtime.pointerGetAttributes(address)
        return Owner(about.device, about.type == DEVICE_MEMORY)

    # ------------------------------------------------------------ memory
    @named
    def allocate(self, n_bytes: int) -> int:
        address: int = runtime.malloc(n_bytes)  # not CuPy's pool, whose memory is part of other allocations
        runtime.memset(address, 0, n_bytes)
        runtime.deviceSynchronize()
        return address

    @named
    def free(self, address: int) -> None:
        runtime.free(address)

    @named
    def export(self, address: int) -> bytes:
        return bytes(runtime.ipcGetMemHandle(address))

    @named
    def open(self, handle: bytes) -> int:
        return int(runtime.ipcOpenMemHandle(handle))

    @named
    def close(self, address: int) -> None:
        runtime.ipcCloseMemHandle(address)

    @named
    def pin(self, n_bytes: int) -> int:
        address: int = runtime.hostAlloc(n_bytes, PORTABLE | MAPPED)
        ctypes.memset(address, 0, n_bytes)
        return address

    @named
    def unpin(self, address: int) -> None:
        runtime.freeHost(address)

    @named
    def register(self, address: int, n_bytes: int) -> None:
        runtime.hostRegister(address, n_bytes, PORTABLE | MAPPED)

    @named
    def unregister(self, address: int) -> None:
        runtime.hostUnregister(address)

    @named
    def copy(self, target: int, source: int, n_bytes: int, stream: int) -> None:
        runtime.memcpyAsync(target, source, n_bytes, ANY_DIRECTION, stream)

    # ------------------------------------------------------------ kernels
    @named
    def function(self, kernel: str, dtype: str, op: str) -> int:
        return int(module(dtype, op).get_function(source.entry(kernel, dtype, op)).kernel.ptr)

    @named
    def launch(
        self, function: int, grid: int, threads: int, arguments: Sequence[ctypes.Structure], stream: int
    ) -> None:
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        driver.launchKernel(function, grid, 1, 1, threads, 1, 1, 0, stream, ctypes.addressof(pointers), 0)

    # ------------------------------------------------------------ order
    @named
    def current_stream(self, x: Any, device: int) -> int:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(x, torch.Tensor):
            return int(torch.cuda.current_stream(device).cuda_stream)
        return int(cupy.cuda.get_current_stream().ptr)

    @named
    def stream(self) -> int:
        return int(runtime.streamCreateWithFlags(NON_BLOCKING))

    @named
    def capturing(self, stream: int) -> bool:
        return bool(runtime.streamIsCapturing(stream))

    @named
    def synchronize(self, stream: int) -> None:
        runtime.streamSynchronize(stream)

    @named
    def event(self) -> int:
        return int(runtime.eventCreateWithFlags(NO_TIMING))

    @named
    def forget(self, event: int) -> None:
        runtime.eventDestroy(event)

    @named
    def record(self, event: int, stream: int) -> None:
        runtime.eventRecord(event, stream)

    @named
    def wait(self, stream: int, event: int) -> None:
        runtime.streamWaitEvent(stream, event)

    @named
    def done(self, event: int) -> bool:
        return bool(runtime.eventQuery(event) == 0)

    def like(self, x: Any, count: int) -> Any:
        torch = sys.modules.get("torch")
        return x.new_empty(count) if torch is not None and isinstance(x, torch.Tensor) else cupy.empty(count, x.dtype)

    def array(self, address: int, dtype: str, shape: tuple[int, ...], keep: Any) -> Any:
        n_bytes = max(1, prod(shape) * ITEMSIZE[dtype])
        memory = cupy.cuda.UnownedMemory(address, n_bytes, keep)
        raw = cupy.ndarray((n_bytes,), dtype="uint8", memptr=cupy.cuda.MemoryPointer(memory, 0))
        torch = sys.modules.get("torch")
        if torch is not None:
            return torch.from_dlpack(raw).view(getattr(torch, dtype)).view(shape)
        if dtype == "bfloat16":
            raise DriverError("CuPy has no bfloat16: import torch before asking for it")
        return raw.view(dtype).reshape(shape)
