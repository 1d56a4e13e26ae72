"""What is asked of CUDA, and no more: so that little remains that only a GPU can test, and tests can stand in for it.

Addresses, streams, events and functions are whole numbers, as CUDA's own. Failures are DriverError, with CUDA's words.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from collectives.errors import UnsupportedError

HANDLE_BYTES = 64  # of exported memory
MEND = "install CuPy for the driver's major version (pip install 'treering[cuda12]' or 'treering[cuda13]')"


class DriverError(UnsupportedError):
    """CUDA has refused something."""


@dataclass(frozen=True)
class Properties:
    """A device: `bus` tells it from all others of the machine."""

    name: str
    multiprocessors: int
    capability: int  # 90 for 9.0
    bus: str
    driver: int  # version, as 13000


@dataclass(frozen=True)
class Owner:
    """Whose memory an address is: a device, and whether it is the device's own (not managed, not the host's)."""

    device: int
    exportable: bool


class Driver(Protocol):
    """One process's use of CUDA. What takes a stream returns before it is done."""

    def properties(self, device: int) -> Properties: ...
    def use(self, device: int) -> None:
        """For this thread's calls from here on."""

    def owner(self, address: int) -> Owner: ...

    # memory
    def allocate(self, n_bytes: int) -> int:
        """Device memory of an allocation of its own, zeroed."""

    def free(self, address: int) -> None: ...
    def export(self, address: int) -> bytes:
        """A handle of an allocation, for other processes; `address` is where it begins."""

    def open(self, handle: bytes) -> int:
        """Map another process's allocation. Never in the process that exported it."""

    def close(self, address: int) -> None: ...
    def pin(self, n_bytes: int) -> int:
        """Memory of the host that kernels see at the same address, zeroed."""

    def unpin(self, address: int) -> None: ...
    def register(self, address: int, n_bytes: int) -> None:
        """Pin memory of the host that is there already."""

    def unregister(self, address: int) -> None: ...
    def copy(self, target: int, source: int, n_bytes: int, stream: int) -> None: ...

    # kernels
    def function(self, kernel: str, dtype: str, op: str) -> int:
        """A kernel, compiled and loaded: nothing of that may happen while another kernel waits for its peers."""

    def launch(
        self, function: int, grid: int, threads: int, arguments: Sequence[ctypes.Structure], stream: int
    ) -> None: ...

    # order
    def current_stream(self, x: Any, device: int) -> int:
        """On which x's library would work on it next."""

    def stream(self) -> int:
        """A new one, that waits for no other by itself."""

    def capturing(self, stream: int) -> bool:
        """Whether what the stream gets is recorded into a graph, not run."""

    def synchronize(self, stream: int) -> None: ...
    def event(self) -> int: ...
    def forget(self, event: int) -> None: ...
    def record(self, event: int, stream: int) -> None: ...
    def wait(self, stream: int, event: int) -> None:
        """The stream's later work begins after what the event has recorded."""

    def done(self, event: int) -> bool: ...

    def like(self, x: Any, count: int) -> Any:
        """A new array of `count` elements of x's kind, dtype and device."""

    def array(self, address: int, dtype: str, shape: tuple[int, ...], keep: Any) -> Any:
        """Device memory as a torch tensor, or without torch as a CuPy array. It holds on to `keep`."""


@cache
def driver() -> Driver:
    """CUDA by CuPy. UnsupportedError, with the mend, where there is no CuPy, driver or device."""
    try:
        from collectives.cuda.cupy_driver import CupyDriver
    except ImportError as error:
        raise UnsupportedError(f"this array lies on a GPU, and CuPy is not installed: {MEND} ({error})") from None
    return CupyDriver()
