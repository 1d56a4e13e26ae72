"""One call of a kernel on some ranks: where memory lies, off from 16 bytes, and what must be there afterwards.

Ranks may be processes whose device is emulated, or streams of one process with a GPU: a world says how to reach memory.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Protocol

from collectives.cuda import layout as at
from collectives.cuda import source
from collectives.cuda.arguments import Call
from collectives.cuda.launcher import EXCHANGES
from collectives.dtypes import ITEMSIZE
from collectives.extents import chunk_offsets
from tests.cuda.on_cpu import KINDS as MODULES
from tests.cuda.ranks_on_cpu import SHAPE, folded, numbers

COUNTS = (1, 7, 64, 333, 1000)


class World(Protocol):
    """Each rank's memory: room for inputs, outputs, and data that all ranks map."""

    size: int
    inputs: list[int]
    outputs: list[int]
    data: list[int]

    def write(self, address: int, content: bytes) -> None: ...
    def read(self, address: int, n_bytes: int) -> bytes: ...


@dataclass
class Case:
    """One call. `offset`: elements that memory is off, times the rank's number and one."""

    world: World
    collective: str
    dtype: str
    op: str
    count: int
    offset: int = 0
    in_place: bool = True
    symmetric: bool = False
    root: int = 0
    seed: int = 0
    data: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.data = [
            POOL[self.dtype][(self.seed * 37 + 997 * r) % 2000 * self.size :][: self.count * self.size]
            for r in range(self.world.size)
        ]

    @property
    def size(self) -> int:
        return ITEMSIZE[self.dtype]

    def chunk(self, rank: int) -> tuple[int, int]:
        offsets = chunk_offsets(self.count, self.world.size)
        return offsets[rank] * self.size, offsets[rank + 1] * self.size

    def place(self, rank: int, output: bool) -> int:
        shift = self.offset * (rank + 1 + output) * self.size
        if self.symmetric and output is (self.collective in ("allreduce", "allgather", "broadcast")):
            return self.world.data[rank] + 64 * rank + shift
        same = self.in_place and self.collective not in ("reduce_scatter", "allgather")
        return self.world.inputs[rank] + shift if same or not output else self.world.outputs[rank] + shift

    def addresses(self, rank: int) -> tuple[int, int]:
        """Of input and output."""
        if self.symmetric and self.collective in ("allreduce", "broadcast"):
            return (self.place(rank, True),) * 2
        if self.in_place and self.collective not in ("reduce_scatter", "allgather"):
            return (self.place(rank, False),) * 2
        return self.place(rank, False), self.place(rank, True)

    def fill(self, rank: int) -> None:
        source, target = self.addresses(rank)
        lo, hi = self.chunk(rank)
        if source != target:
            self.world.write(target, b"\xa5" * (self.count * self.size))
        mine = self.data[rank][lo:hi] if self.collective == "allgather" else self.data[rank]
        self.world.write(source, mine)

    def expected(self, rank: int) -> bytes:
        lo, hi = self.chunk(rank)
        match self.collective:
            case "broadcast":
                return self.data[self.root]
            case "allgather":
                return b"".join(self.data[r][slice(*self.chunk(r))] for r in range(self.world.size))
            case "reduce" if rank != self.root:
                return self.data[rank] if self.in_place else b"\xa5" * (self.count * self.size)
        total = folded(self.dtype, self.op, self.data)
        return total[lo:hi] if self.collective == "reduce_scatter" else total

    def check(self, rank: int, what: str) -> None:
        wanted = self.expected(rank)
        found = self.world.read(self.addresses(rank)[1], len(wanted))
        wrong = [
            i // self.size
            for i in range(0, len(wanted), self.size)
            if found[i : i + self.size] != wanted[i : i + self.size]
        ]
        assert not wrong, f"rank {rank} of {self.world.size}: {what}: {self}: {len(wrong)} wrong, first at {wrong[0]}"


POOL = {dtype: numbers(dtype, 4096, 11) for dtype in ITEMSIZE if dtype in source.ELEMENTS}


def exchange(case: Case, rank: int) -> Call:
    gives, rooted, taker = EXCHANGES[case.collective][:3]
    source, target = case.addresses(rank)
    shared = target if case.collective in ("allreduce", "allgather", "broadcast") else source
    packed = {"reduce_scatter": at.OUTPUT_CHUNK, "allgather": at.INPUT_CHUNK}.get(case.collective, 0)
    return Call(
        source, target, case.count, 1 if packed else 16 // case.size, SHAPE.slot_bytes, gives,
        case.root if rooted else at.EVERYONE, taker, case.symmetric,
        shared - case.world.data[rank] if case.symmetric else 0,
        packed,
    )  # fmt: skip


def cases(world: World) -> list[tuple[str, Case]]:
    """Kinds, dtypes, sizes, offsets and memory, so mixed that each meets each other many times."""
    found = []
    turn = itertools.count()
    for (dtype, op), collective in itertools.product(MODULES, EXCHANGES):
        if op != "sum" and collective not in ("allreduce", "reduce_scatter"):
            continue
        for symmetric in (False, True):
            n = next(turn)
            case = Case(
                world, collective, dtype, op, COUNTS[n % 5], offset=(0, 1, 3)[n % 3], in_place=n % 2 == 0,
                symmetric=symmetric, root=n % world.size, seed=n,
            )  # fmt: skip
            found.append(("exchange", case))
        if collective == "allreduce":
            n = next(turn)
            found += [
                ("one_shot", Case(world, collective, dtype, op, COUNTS[k % 5], offset=k % 2, in_place=k > n, seed=k))
                for k in (n, n + 1)
            ]  # fmt: skip
    return found
