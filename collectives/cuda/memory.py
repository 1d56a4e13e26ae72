"""Device memory that all ranks of a node map: windows, and symmetric memory. Every handle is opened once, and closed.

A handle names a whole allocation, so only allocations of our own are exported. Who exports must not free before all
have closed; so closing is collective, in one order: first all close what they opened, then all meet, then all free.
"""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from collectives.cuda import layout as at
from collectives.cuda.driver import HANDLE_BYTES, Driver, DriverError
from collectives.errors import UnsupportedError
from collectives.ranks.peers import Peers

GRANULE = 1 << 21  # bytes: CUDA gives small allocations parts of one, which exporting would give away whole


def attempt(peers: Peers, doing: str, step: Callable[[], bytes]) -> list[bytes]:
    """What the step gives on every rank; where it fails on one, UnsupportedError on all says on which and why."""
    try:
        mine = b"+" + step()
    except DriverError as error:
        mine = b"-" + str(error).encode()
    said = peers.exchange(mine)
    failed = [f"rank {rank}: {text[1:].decode()}" for rank, text in enumerate(said) if text[:1] == b"-"]
    if failed:
        raise UnsupportedError(f"ranks cannot {doing}: {'; '.join(failed)}")
    return [text[1:] for text in said]


@dataclass
class Shared:
    """An allocation of each rank, mapped by all: `bases` are where they lie here."""

    n_bytes: int
    bases: list[int]
    rank: int
    ended: bool = False

    @property
    def own(self) -> int:
        return self.bases[self.rank]

    def holds(self, address: int, n_bytes: int) -> bool:
        return not self.ended and self.own <= address and address + n_bytes <= self.own + self.n_bytes


@dataclass
class DeviceMemory:
    """What one rank has exported and opened. `peers` are the ranks of the node, which must all be there."""

    driver: Driver
    peers: Peers
    held: list[Shared] = field(default_factory=list)

    def share(self, n_bytes: int) -> Shared:
        """Allocate, export, and open everybody's. Collective; UnsupportedError on all ranks where one cannot."""
        size = -(-n_bytes // GRANULE) * GRANULE
        made: list[int] = []

        def export() -> bytes:
            made.append(self.driver.allocate(size))
            return self.driver.export(made[0])

        opened: dict[int, int] = {}
        try:
            handles = attempt(self.peers, "export device memory to each other", export)

            def open_all() -> bytes:
                for rank, handle in enumerate(handles):
                    if rank != self.peers.rank:
                        opened[rank] = self.driver.open(handle[:HANDLE_BYTES])
                return b""

            attempt(self.peers, "map each other's device memory", open_all)
        except UnsupportedError:
            for address in opened.values():
                self.driver.close(address)
            self.peers.meet()
            for address in made:
                self.driver.free(address)
            raise
        bases = [made[0] if rank == self.peers.rank else opened[rank] for rank in range(self.peers.size)]
        shared = Shared(n_bytes, bases, self.peers.rank)
        self.held.append(shared)
        return shared

    def drop(self, several: Sequence[Shared]) -> None:
        """Unmap and free. Collective; no kernel may be using them on any rank."""
        for shared in several:
            for rank, base in enumerate(shared.bases):
                if rank != self.peers.rank:
                    self.driver.close(base)
        self.peers.meet()
        for shared in several:
            self.driver.free(shared.own)
            self.held.remove(shared)

    def close(self) -> None:
        """All of it. Collective."""
        self.drop(list(self.held))


class SymmetricMemory:
    """`comm.empty(device="cuda")`: what kernels of all ranks read and write where it lies, by number and offset."""

    MOST = 1024  # regions at a time

    def __init__(self, memory: DeviceMemory, stream: int):
        self.memory, self.stream = memory, stream
        self.regions: dict[int, Shared] = {}
        self.table = memory.driver.allocate(8 * at.MAX_RANKS * self.MOST)  # what kernels look up

    def empty(self, dtype: str, shape: tuple[int, ...], n_bytes: int) -> Any:
        """A new array. Collective; memory that has ended on all ranks is freed first."""
        self.reclaim()
        number = next(n for n in range(1, self.MOST + 1) if n not in self.regions)
        shared = self.memory.share(n_bytes)
        row = (ctypes.c_uint64 * at.MAX_RANKS)(*shared.bases)
        where = self.table + 8 * at.MAX_RANKS * (number - 1)
        self.memory.driver.copy(where, ctypes.addressof(row), ctypes.sizeof(row), self.stream)
        self.memory.driver.synchronize(self.stream)
        self.regions[number] = shared
        keep = _Keep()
        weakref.finalize(keep, setattr, shared, "ended", True).atexit = False
        return self.memory.driver.array(shared.own, dtype, shape, keep)

    def reclaim(self) -> None:
        """Free the regions that nobody uses on any rank. Collective."""
        numbers = sorted(self.regions)
        if not numbers:
            return
        ended = self.memory.peers.words(*(self.regions[number].ended for number in numbers))
        gone = [number for number, said in zip(numbers, zip(*ended, strict=True), strict=True) if all(said)]
        if gone:
            self.memory.drop([self.regions.pop(number) for number in gone])

    def find(self, address: int, n_bytes: int) -> tuple[int, int]:
        """Number and offset of the region in which memory lies; zeros where it is ordinary."""
        for number, shared in self.regions.items():
            if shared.holds(address, n_bytes):
                return number, address - shared.own
        return 0, 0

    def close(self) -> None:
        self.memory.driver.free(self.table)


class _Keep:
    """What an array holds on to for as long as it lives."""
