"""Symmetric memory: regions that all ranks of a node map, so that a collective needs no copy.

Making one is collective. It ends locally, when nobody uses it any more; its room is given back at the next making, when
all ranks agree that it has ended everywhere. All ranks call a region by the same number, which is what they publish:
addresses differ from process to process, and are reused at once.
"""

import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collectives.arrays import array as array_of
from collectives.buffers import torch_dtypes
from collectives.dtypes import DTYPES, ITEMSIZE
from collectives.errors import MismatchError, UnsupportedError
from collectives.native import layout as st
from collectives.native.endpoint import Endpoint
from collectives.native.window import SharedWindow
from collectives.ranks.launch import Group
from collectives.ranks.peers import Peers

PAGE = mmap.PAGESIZE


@dataclass
class Region:
    """One rank's part of some symmetric memory, and where it finds the others' parts."""

    number: int
    address: int  # of my part
    n_bytes: int
    bases: Sequence[int]  # of each rank of the node
    keep: Any  # what maps them
    registered: bool  # my part is a tensor's own storage, which outlives the region
    ended: bool = False


class Directory:
    """The regions as kernels read them (native/regions.py): rows by address, then the row of each number."""

    def __init__(self, regions: Sequence[Region], ranks: int):
        size = st.R_FIRST_BASE + ranks
        rows = sorted(regions, key=lambda region: (region.address, not region.ended))  # of one address, the last counts
        numbers_at = st.REGION_ROW_AT + size * len(rows)
        self.words = w = (ctypes.c_int64 * (numbers_at + 1 + max((region.number for region in rows), default=0)))()
        self.address = ctypes.addressof(w) if rows else 0
        self._ended: dict[int, int] = {}
        w[st.REGION_COUNT], w[st.REGION_ROW_WORDS] = len(rows), size
        for place, region in enumerate(rows):
            at = st.REGION_ROW_AT + size * place
            row: Any = [region.address, region.address + region.n_bytes, region.number, region.ended, *region.bases]
            w[at : at + size] = row
            w[numbers_at + region.number] = place
            self._ended[region.number] = at + st.R_ENDED

    def end(self, number: int) -> None:
        self.words[self._ended[number]] = 1


class Regions:
    """The symmetric memory of one communicator."""

    def __init__(self, group: Group, endpoint: Endpoint):
        self.group, self.endpoint = group, endpoint
        self.regions: dict[int, Region] = {}
        self.directory = Directory([], 1)

    def end(self, region: Region) -> None:
        """Local, at any time: a garbage collector may call it."""
        region.ended = True
        if self.regions.get(region.number) is region:
            self.directory.end(region.number)

    # ------------------------------------------------------------ making
    def empty(self, shape: int | Sequence[int], dtype: str) -> Any:
        """A new array: a torch tensor, or without torch an Array (arrays.py). Collective."""
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
        region = self._add(bases, n_bytes, window, registered=False)
        memory = (ctypes.c_char * n_bytes).from_address(region.address)
        weakref.finalize(memory, self.end, region).atexit = False
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
        self.release(x)  # where it is registered already, this takes its place
        self._reclaim()
        bases, mapped = map_storages(self.group.node, storage)
        if bases is None:
            raise UnsupportedError(
                "a rank of the node cannot share its storage or map another one's, which remain ordinary memory; use "
                "comm.empty instead, or see what treering doctor says of limits"
            )
        self._add(bases, storage.nbytes(), (mapped, storage), registered=True)
        return x

    def release(self, x: Any) -> None:
        """Let a registered tensor go; its memory becomes ordinary for this communicator."""
        for region in self.regions.values():
            if region.registered and region.address <= x.data_ptr() < region.address + region.n_bytes:
                self.end(region)

    def _add(self, bases: Sequence[int], n_bytes: int, keep: Any, registered: bool) -> Region:
        number = next(number for number in range(1, len(self.regions) + 2) if number not in self.regions)
        region = Region(number, bases[self.group.node.rank], n_bytes, bases, keep, registered)
        self.regions[number] = region
        self._publish()
        return region

    def _publish(self) -> None:
        """No call is under way: none reads the directory that goes."""
        self.directory = Directory(list(self.regions.values()), self.group.node.size)
        self.endpoint.words[st.REGIONS] = self.directory.address

    def _reclaim(self) -> None:
        """Unmap the regions that have ended on all ranks."""
        numbers = sorted(self.regions)
        if not numbers:
            return
        ended = self.group.node.words(*(self.regions[number].ended for number in numbers))
        for number in (number for number, done in zip(numbers, zip(*ended, strict=True), strict=True) if all(done)):
            del self.regions[number]
        self._publish()

    def _agree(self, field_: str, value: int) -> None:
        everyone = [theirs for (theirs,) in self.group.comm.words(value)]
        if len(set(everyone)) > 1:
            raise MismatchError(field_, range(len(everyone)), everyone)


def shaped(memory: Any, dtype: str, shape: tuple[int, ...], count: int) -> Any:
    """The memory as a tensor, or without torch as an Array."""
    torch = sys.modules.get("torch")
    if torch is None:
        return array_of(memory, dtype, shape)
    flat = torch.frombuffer(memory, dtype=torch.uint8)[: count * ITEMSIZE[dtype]]
    return flat.view(getattr(torch, dtype)).view(shape)


def map_storages(node: Peers, storage: Any) -> tuple[list[int] | None, list[Any]]:
    """Where each rank's storage lies here; None where some rank cannot map one. Collective over the node."""
    try:
        fd = storage._share_fd_cpu_()[0]
        about = os.fstat(fd)
        mine = (os.getpid(), fd, about.st_dev, about.st_ino, about.st_size)
    except (OSError, RuntimeError):  # torch's own words for no descriptor, no room
        mine = (os.getpid(), -1, 0, 0, 0)
    everyone = node.words(*mine)
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
