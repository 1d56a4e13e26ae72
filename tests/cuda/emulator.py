"""A Driver without a GPU: device memory is memory that processes share, kernels are the same source built for the CPU.

Streams are threads that work in order, events order them, handles are descriptors: so what is left untested is only
that CUDA does what its manual says. Misuse fails: opening one's own handle or one twice, freeing what is mapped,
closing what is not open, copying outside memory that is there.
"""

# ruff: noqa: ARG002 - methods take what a driver's take
from __future__ import annotations

import ctypes
import mmap
import os
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from collectives.cuda.driver import DriverError, Owner, Properties
from collectives.dtypes import ITEMSIZE
from tests.cuda import on_cpu

THREADS = 4  # of a block, whatever a launch asks for: what kernels do must not depend on it


class DeviceArray:
    """An array that says, as CuPy's do, that it lies on a GPU."""

    def __init__(self, address: int, dtype: str, shape: tuple[int, ...], keep: Any = None) -> None:
        self.address, self.dtype, self.shape, self.keep = address, dtype, shape, keep
        self.strides: tuple[int, ...] | None = None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        kind = "V" if self.dtype == "bfloat16" else "f" if "float" in self.dtype else "i"
        typestr = f"<{kind}{ITEMSIZE[self.dtype]}"
        about = {"data": (self.address, False), "shape": self.shape, "typestr": typestr, "version": 3}
        return about | {"strides": self.strides}

    @property
    def n_bytes(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count * ITEMSIZE[self.dtype]

    def write(self, data: bytes) -> DeviceArray:
        ctypes.memmove(self.address, data, len(data))
        return self

    def read(self) -> bytes:
        return ctypes.string_at(self.address, self.n_bytes)


class Stream:
    """Work in order, in a thread of its own."""

    def __init__(self) -> None:
        self.work: queue.Queue[Callable[[], object]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self.work.get()()
            self.work.task_done()


class Emulator:
    """One process's device. `fails` names methods that CUDA would refuse here."""

    def __init__(self, device: int = 0, fails: Sequence[str] = (), bus: str = "00:00.0") -> None:
        self.device, self.fails, self.bus = device, fails, bus
        self.allocations: dict[int, tuple[int, mmap.mmap]] = {}
        self.opened: dict[int, tuple[bytes, mmap.mmap]] = {}
        self.pinned: dict[int, Any] = {}
        self.registered: dict[int, int] = {}
        self.events: dict[int, threading.Event] = {}
        self.streams = [Stream()]
        self.functions: list[tuple[str, str, str]] = []
        self.launches: list[tuple[str, int, int, int]] = []  # kernel, grid, threads, stream
        self.current = 0
        self.host: list[Any] = []

    def _may(self, name: str) -> None:
        if name in self.fails:
            raise DriverError(f"cannot {name}: not supported on this device")

    def properties(self, device: int) -> Properties:
        self._may("properties")
        return Properties("emulated", 12, 90, self.bus, 13000)

    def use(self, device: int) -> None:
        assert device == self.device

    def owner(self, address: int) -> Owner:
        return Owner(self.device if "other device" not in self.fails else self.device + 1, "managed" not in self.fails)

    # ------------------------------------------------------------ memory
    def allocate(self, n_bytes: int) -> int:
        fd = os.memfd_create("emulated")
        os.ftruncate(fd, n_bytes)
        memory = mmap.mmap(fd, n_bytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.allocations[address] = fd, memory
        return address

    def free(self, address: int) -> None:
        os.close(self.allocations.pop(address)[0])

    def export(self, address: int) -> bytes:
        self._may("export")
        fd, memory = self.allocations[address]
        return f"{os.getpid()}:{fd}:{len(memory)}".encode().ljust(64, b"\0")

    def open(self, handle: bytes) -> int:
        self._may("open")
        pid, fd, n_bytes = map(int, handle.rstrip(b"\0").split(b":"))
        assert pid != os.getpid(), "CUDA does not open a handle in the process that made it"
        assert all(known != handle for known, _ in self.opened.values()), "opened twice"
        there = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
        memory = mmap.mmap(there, n_bytes)
        os.close(there)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.opened[address] = handle, memory
        return address

    def close(self, address: int) -> None:
        del self.opened[address]

    def pin(self, n_bytes: int) -> int:
        memory = ctypes.create_string_buffer(n_bytes)
        self.pinned[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def unpin(self, address: int) -> None:
        del self.pinned[address]

    def register(self, address: int, n_bytes: int) -> None:
        assert address not in self.registered
        self.registered[address] = n_bytes

    def unregister(self, address: int) -> None:
        del self.registered[address]

    def copy(self, target: int, source: int, n_bytes: int, stream: int) -> None:
        self.streams[stream].work.put(partial(ctypes.memmove, target, source, n_bytes))

    # ------------------------------------------------------------ kernels
    def function(self, kernel: str, dtype: str, op: str) -> int:
        if (kernel, dtype, op) not in self.functions:
            self.functions.append((kernel, dtype, op))
        return self.functions.index((kernel, dtype, op))

    def launch(
        self, function: int, grid: int, threads: int, arguments: Sequence[ctypes.Structure], stream: int
    ) -> None:
        name = self.functions[function]
        self.launches.append((name[0], grid, threads, stream))
        copies = [type(each).from_buffer_copy(each) for each in arguments]  # as they are now
        self.streams[stream].work.put(lambda: on_cpu.run(*name, grid, THREADS, *copies))

    # ------------------------------------------------------------ order
    def current_stream(self, x: Any, device: int) -> int:
        return self.current

    def stream(self) -> int:
        self.streams.append(Stream())
        return len(self.streams) - 1

    def capturing(self, stream: int) -> bool:
        return False

    def synchronize(self, stream: int) -> None:
        self.streams[stream].work.join()

    def event(self) -> int:
        number = max(self.events, default=0) + 1
        self.events[number] = threading.Event()
        self.events[number].set()
        return number

    def forget(self, event: int) -> None:
        del self.events[event]

    def record(self, event: int, stream: int) -> None:
        made = self.events[event] = threading.Event()
        self.streams[stream].work.put(made.set)

    def wait(self, stream: int, event: int) -> None:
        recorded = self.events[event]
        self.streams[stream].work.put(recorded.wait)

    def done(self, event: int) -> bool:
        return self.events[event].is_set()

    # ------------------------------------------------------------ arrays
    def new(self, dtype: str, count: int) -> DeviceArray:
        return DeviceArray(self.allocate(max(1, count * ITEMSIZE[dtype])), dtype, (count,))

    def like(self, x: Any, count: int) -> Any:
        return self.new(x.dtype, count)

    def array(self, address: int, dtype: str, shape: tuple[int, ...], keep: Any) -> Any:
        return DeviceArray(address, dtype, shape, keep)
