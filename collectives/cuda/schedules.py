"""Schedules on a device: tables made once for a kind of call, and kept in device memory with their scratch."""

import ctypes
from collections import OrderedDict
from dataclasses import dataclass

from collectives.algorithms import find
from collectives.contract import contract
from collectives.cuda.arguments import Steps
from collectives.cuda.choice import DeviceChoice
from collectives.cuda.driver import Driver
from collectives.cuda.launcher import Request
from collectives.cuda.tables import channels, lowered, part_counts, parts_of
from collectives.cuda.window import Shape
from collectives.verify import weights

MOST_TABLES = 64  # kept; the one used longest ago goes first


@dataclass
class Kept:
    """A table in device memory, behind it the scratch of all parts."""

    memory: int
    tables: tuple[int, int]
    parts: int
    slots: int
    blocks: int
    part_bytes: int
    scratch: int
    scratch_bytes: int
    slot_bytes: int

    def steps(self, source: int, target: int) -> Steps:
        return Steps(
            self.tables, self.parts, self.slots, self.part_bytes, target, source, target, self.scratch,
            self.scratch_bytes, self.slot_bytes,
        )  # fmt: skip


class Schedules:
    """Those of one communicator."""

    def __init__(self, driver: Driver, rank: int, ranks: int, shape: Shape, stream: int):
        self.driver, self.rank, self.ranks, self.shape, self.stream = driver, rank, ranks, shape, stream
        self._kept: OrderedDict[tuple[object, ...], Kept] = OrderedDict()

    def find(self, request: Request, choice: DeviceChoice, resident: int) -> Kept:
        """The tables of such calls. UnsupportedError where blocks for them could not all be resident."""
        key = (
            request.collective,
            request.dtype,
            request.op,
            request.count,
            request.root,
            choice.algorithm,
            choice.params,
        )
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = self._make(request, choice, resident)
            if len(self._kept) > MOST_TABLES:
                self._free(self._kept.popitem(last=False)[1])
        self._kept.move_to_end(key)
        return kept

    def _make(self, request: Request, choice: DeviceChoice, resident: int) -> Kept:
        algorithm = find(request.collective, choice.algorithm)
        params = {
            parameter.name: choice[parameter.name] for parameter in algorithm.parameters if choice[parameter.name]
        }
        schedules = algorithm.schedules(self.ranks, root=request.root, **algorithm.check(**params))
        promise = contract(request.collective, self.ranks, request.root)
        weighed = weights(schedules, promise)[self.rank] if request.op == "avg" else None
        lanes, slots = channels(schedules)
        itemsize = request.target.itemsize
        parts = parts_of(request.collective, choice["parts"], lanes, slots, request.count, resident)
        counts = part_counts(request.count, parts, itemsize)
        made = [
            lowered(
                schedules[self.rank], request.collective, self.ranks, self.rank, count, itemsize,
                piece_bytes=self.shape.fifo_bytes, segment_bytes=choice["segment_bytes"], weights=weighed,
            )
            for count in counts
        ]  # fmt: skip
        blocks = parts * max(each.blocks for each in made)
        scratch, slot = (max(getattr(each, name) for each in made) for name in ("scratch_bytes", "slot_bytes"))
        table_bytes = [-(-8 * len(each.words) // 256) * 256 for each in made]
        memory = self.driver.allocate(sum(table_bytes) + parts * (scratch + slot) + 256)
        at = memory, memory + table_bytes[0]
        words = [(ctypes.c_int64 * len(each.words))(*each.words) for each in made]
        for where, each in zip(at, words, strict=True):
            self.driver.copy(where, ctypes.addressof(each), ctypes.sizeof(each), self.stream)
        self.driver.synchronize(self.stream)
        return Kept(
            memory, at, parts, slots, blocks, counts[0] * itemsize, memory + sum(table_bytes), scratch, slot
        )  # fmt: skip

    def _free(self, kept: Kept) -> None:
        self.driver.free(kept.memory)  # CUDA waits for the kernels that may still read it

    def close(self) -> None:
        for kept in self._kept.values():
            self._free(kept)
        self._kept.clear()
