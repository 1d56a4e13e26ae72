"""Symmetric memory: regions that all ranks of a node map, so that a collective needs no copy.

Making one is collective. It ends locally, when nobody uses it any more; its room is given back at the next making, when
all ranks agree that it has ended everywhere. Regions have numbers that are never used again, which is what ranks
compare: addresses are reused at once.
"""

import ctypes
import mmap
import os
import sys
import weakref
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from collectives.buffers import TYPECODES, torch_dtypes
from collectives.dtypes import DTYPES, ITEMSIZE
from collectives.errors import MismatchError, UnsupportedError
from collectives.launch import Group
from collectives.native import layout as st
from collectives.native.storage import Memory
from collectives.native.window import SharedWindow
from collectives.peers import Peers

PAGE = mmap.PAGESIZE


@dataclass
class Region:
    """One rank's part of some symmetric memory, and where it finds the others' parts."""

    number: int
    address: int  # of my part
    n_bytes: int
    bases: Sequence[int]  # of each rank of the node
    keep: Any  # what maps them
    ended: bool = False
    words: Memory = field(init=False)

    def __post_init__(self) -> None:
        self.words = Memory(8 * (st.REGION_BASES + len(self.bases)))
        self.words.words(0, st.REGION_BASES + len(self.bases))[:] = [self.number, *self.bases]

    @property
    def words_at(self) -> int:
        """Address of the region's words, as node kernels read them."""
        return self.words.address

    def end(self) -> None:
        self.ended = True


class Regions:
    """The symmetric memory of one communicator."""

    def __init__(self, group: Group):
        self.group, self.made = group, 0
        self.regions: dict[int, Region] = {}
        self._starts: list[int] = []
        self._sorted: list[Region] = []

    def find(self, address: int, n_bytes: int) -> Region | None:
        """The region that holds all of these bytes of mine."""
        at = bisect(self._starts, address) - 1
        if at < 0:
            return None
        region = self._sorted[at]
        return region if not region.ended and address + n_bytes <= region.address + region.n_bytes else None

    def number(self, address: int, n_bytes: int) -> int:
        """That region's number, or 0."""
        region = self.find(address, n_bytes)
        return region.number if region is not None else 0

    # ------------------------------------------------------------ making
    def empty(self, shape: int | Sequence[int], dtype: str) -> Any:
        """A new array: a torch tensor, or without torch a memoryview. Collective."""
        name = str(dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise TypeError(f"dtype {dtype!r} does not exist; there are {', '.join(DTYPES)}")
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        count = 1
        for size in sizes:
            count *= size
        n_bytes = max(1, count * ITEMSIZE[name])
        self._agree("size of symmetric memory", n_bytes)
        self._reclaim()
        part = -(-n_bytes // PAGE) * PAGE
        window = SharedWindow.create(self.group.node, part * self.group.node.size)
        bases = [window.address + rank * part for rank in range(self.group.node.size)]
        region = self._add(bases, n_bytes, window)
        memory = (ctypes.c_char * n_bytes).from_address(region.address)
        weakref.finalize(memory, region.end).atexit = False
        return shaped(memory, name, sizes, count)

    def register(self, x: Any) -> Any:
        """Move the storage of a torch tensor into shared memory, where it is, and map the others'. Collective.

        Only storages that nobody resizes may be moved. What it takes is given back by `release`, or at the end.
        """
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(x, torch.Tensor):
            raise TypeError(f"x is a {type(x).__name__}; only torch tensors can be registered: comm.empty makes others")
        if x.device.type != "cpu" or x.dtype not in torch_dtypes() or not x.is_contiguous():
            raise ValueError("x must be a contiguous CPU tensor of a dtype that can be reduced")
        storage = x.untyped_storage()
        self._agree("size of the storage to register", storage.nbytes())
        self._reclaim()
        bases, mapped = map_storages(self.group.node, storage)
        if bases is None:
            raise UnsupportedError("a rank of the node cannot map another one's storage; use comm.empty instead")
        self._add(bases, storage.nbytes(), (mapped, storage))
        return x

    def release(self, x: Any) -> None:
        """Let a registered tensor go; its memory becomes ordinary for this communicator."""
        region = self.find(x.data_ptr(), 1)
        if region is not None:
            region.end()

    def _add(self, bases: Sequence[int], n_bytes: int, keep: Any) -> Region:
        self.made += 1
        region = Region(self.made, bases[self.group.node.rank], n_bytes, bases, keep)
        self.regions[region.number] = region
        self._sort()
        return region

    def _sort(self) -> None:
        self._sorted = sorted(self.regions.values(), key=lambda region: region.address)
        self._starts = [region.address for region in self._sorted]

    def _reclaim(self) -> None:
        """Unmap the regions that have ended on all ranks."""
        numbers = sorted(self.regions)
        if not numbers:
            return
        ended = self.group.node.words(*(self.regions[number].ended for number in numbers))
        for number in (number for number, done in zip(numbers, zip(*ended, strict=True), strict=True) if all(done)):
            del self.regions[number]
        self._sort()

    def _agree(self, field_: str, value: int) -> None:
        everyone = [theirs for (theirs,) in self.group.comm.words(value)]
        if len(set(everyone)) > 1:
            raise MismatchError(field_, range(len(everyone)), everyone)


def shaped(memory: Any, dtype: str, shape: tuple[int, ...], count: int) -> Any:
    """The memory as a tensor, or without torch as a memoryview."""
    torch = sys.modules.get("torch")
    if torch is not None:
        flat = torch.frombuffer(memory, dtype=torch.uint8)[: count * ITEMSIZE[dtype]]
        return flat.view(getattr(torch, dtype)).view(shape)
    if dtype not in TYPECODES:
        raise UnsupportedError(f"there are no arrays of {dtype} without torch; import torch first")
    code: Any = TYPECODES[dtype]
    return memoryview(memory).cast("B")[: count * ITEMSIZE[dtype]].cast(code, shape)


def map_storages(node: Peers, storage: Any) -> tuple[list[int] | None, list[Any]]:
    """Where each rank's storage lies here; None where some rank cannot map one. Collective over the node."""
    fd = storage._share_fd_cpu_()[0]
    about = os.fstat(fd)
    everyone = node.words(os.getpid(), fd, about.st_dev, about.st_ino, about.st_size)
    bases, mapped = [], []
    for rank, (pid, their_fd, device, inode, size) in enumerate(everyone):
        memory = None if rank == node.rank else map_file(f"/proc/{pid}/fd/{their_fd}", device, inode, size)
        mapped.append(memory)
        if rank == node.rank:
            bases.append(storage.data_ptr())
        elif memory is not None:
            bases.append(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    return (bases if node.agree(len(bases) == node.size) else None), mapped


def map_file(path: str, device: int, inode: int, size: int) -> mmap.mmap | None:
    """The file, if it is the one that was meant."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        about = os.fstat(fd)
        if (about.st_dev, about.st_ino) != (device, inode):
            return None
        return mmap.mmap(fd, size)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)
