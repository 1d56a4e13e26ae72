"""Every kernel, from the very source that a device's compiler reads, across processes: bits as the CPU's own kernels make."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass, field

import pytest

from collectives.algorithms import find
from collectives.contract import contract
from collectives.cuda import layout as at
from collectives.cuda.arguments import Bytes, Call, Places, Rounds, Steps
from collectives.cuda.tables import channels, lowered, part_counts, parts_of
from collectives.dtypes import ITEMSIZE
from collectives.extents import chunk_offsets
from collectives.verify import weights as weights_of
from tests.cuda import on_cpu
from tests.cuda.ranks_on_cpu import SHAPE, Memory, World, folded, fork, numbers

pytestmark = pytest.mark.skipif(on_cpu.compiler() is None, reason="g++ is not installed: apt-get install g++")

THREADS = 4
COUNTS = (1, 7, 64, 333, 1000)
KINDS = {  # (gives, owner is root, taker), what each rank puts in and gets: see exchange.cuh
    "allreduce": (1, False, at.EVERYONE), "reduce_scatter": (1, False, at.NOBODY), "allgather": (0, False, at.EVERYONE),
    "broadcast": (0, True, at.EVERYONE), "reduce": (1, True, at.NOBODY),
}  # fmt: skip
SCHEDULES = (
    ("allreduce", "ring", {}), ("allreduce", "ring", {"segment_bytes": 64, "slots": 3}),
    ("allreduce", "double_tree", {"segment_bytes": 128, "slots": 2}), ("allreduce", "recursive_doubling", {}),
    ("allreduce", "two_shot", {}), ("broadcast", "binomial_tree", {}), ("broadcast", "scatter_allgather", {}),
    ("reduce_scatter", "ring", {}), ("allgather", "ring", {}), ("reduce", "binomial_tree", {}),
)  # fmt: skip


@dataclass
class Case:
    """One call: where each rank's memory lies, off from 16 bytes, and what must be there afterwards."""

    world: World
    collective: str
    dtype: str
    op: str
    count: int
    offset: int = 0  # elements that a rank's memory is off, times its number and one
    in_place: bool = True
    symmetric: bool = False
    root: int = 0
    seed: int = 0
    data: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.data = [POOL[self.dtype][(self.seed * 37 + 997 * r) % 2000 * self.size :][: self.count * self.size] for r in range(self.world.size)]

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
            ctypes.memset(target, 0xA5, self.count * self.size)
        mine = self.data[rank][lo:hi] if self.collective == "allgather" else self.data[rank]
        ctypes.memmove(source, mine, len(mine))

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
        found = ctypes.string_at(self.addresses(rank)[1], len(wanted))
        wrong = [i // self.size for i in range(0, len(wanted), self.size) if found[i : i + self.size] != wanted[i : i + self.size]]
        assert not wrong, f"rank {rank} of {self.world.size}: {what}: {self}: {len(wrong)} wrong, first at {wrong[0]}"


POOL = {dtype: numbers(dtype, 4096, 11) for dtype in ITEMSIZE if dtype in on_cpu.source.ELEMENTS}


def exchange(case: Case, rank: int) -> Call:
    gives, rooted, taker = KINDS[case.collective]
    source, target = case.addresses(rank)
    shared = target if case.collective in ("allreduce", "allgather", "broadcast") else source
    packed = {"reduce_scatter": at.OUTPUT_CHUNK, "allgather": at.INPUT_CHUNK}.get(case.collective, 0)
    return Call(
        source, target, case.count, 1 if packed else 16 // case.size, SHAPE.slot_bytes, gives,
        case.root if rooted else at.EVERYONE, taker, case.symmetric, shared - case.world.data[rank] if case.symmetric else 0,
        packed,
    )  # fmt: skip


def cases(world: World) -> list[tuple[str, Case]]:
    """Kinds, dtypes, sizes, offsets and memory, so mixed that each meets each other many times."""
    found = []
    turn = itertools.count()
    for (dtype, op), collective in itertools.product(on_cpu.KINDS, KINDS):
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
                ("one_shot", Case(world, collective, dtype, op, COUNTS[(n + k) % 5], offset=(n + k) % 2, in_place=k > 0, seed=n + k))
                for k in range(2)
            ]  # fmt: skip
    return found


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_collectives(size):
    """Kernels of every kind in a row on the same windows, with other grids from call to call."""
    world = World(size)
    calls = cases(world)
    on_cpu.library()
    wanted = [[case.expected(rank) for rank in range(size)] for _, case in calls]  # so that kernels are compiled once
    assert wanted

    def work(rank: int) -> None:
        group = world.group(rank)
        for i, (kernel, case) in enumerate(calls):
            case.fill(rank)
            arguments = exchange(case, rank) if kernel == "exchange" else Call(*case.addresses(rank), case.count, piece=SHAPE.slot_bytes)
            on_cpu.run("signals", "int32", "sum", 1, THREADS, group, Rounds(1))  # all have filled theirs
            on_cpu.run(kernel, case.dtype, case.op, 1 + i % 3, THREADS, group, arguments)
            case.check(rank, kernel)
        assert world.report(rank)[at.R_CODE] == 0

    fork(world, work)


@pytest.mark.parametrize("size", [2, 4])
def test_many_epochs(size):
    """200 calls in a row on one window without a rest: whoever is early must not overwrite what others still read."""
    world = World(size)
    turns = [(Case(world, "allreduce", "float32", "sum", 1 + 331 * (i % 4), seed=i), ("one_shot", "exchange")[i % 3 > 0]) for i in range(200)]
    on_cpu.library()
    folded("float32", "sum", turns[0][0].data)

    def work(rank: int) -> None:
        group = world.group(rank)
        for case, kernel in turns:
            case.fill(rank)
            call = exchange(case, rank) if kernel == "exchange" else Call(*case.addresses(rank), case.count, piece=SHAPE.slot_bytes)
            on_cpu.run(kernel, "float32", "sum", 2, THREADS, group, call)
            case.check(rank, kernel)
        epoch = ctypes.c_uint32.from_address(world.windows[rank]).value
        assert epoch > 200

    fork(world, work)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_schedules(size):
    """Rings and trees by the tables that the CPU's executor runs, with one block a lane, and with several."""
    world, room = World(size), Memory(1 << 22)
    calls = []
    for i, (collective, name, params) in enumerate(SCHEDULES):
        algorithm = find(collective, name)
        if algorithm.refusal(size):
            continue
        for dtype, op, count, parts in (("float32", "avg", 1003, 3), ("bfloat16", "max", 61, 1), ("int64", "max", 517, 2)):
            root = i % size if collective in ("broadcast", "reduce") else 0
            full = algorithm.check(**params)
            schedules = algorithm.schedules(size, root=root, **full)
            weights = weights_of(schedules, contract(collective, size, root)) if op == "avg" else [None] * size
            case = Case(world, collective, dtype, op, count, in_place=collective != "reduce", seed=i, root=root)
            lanes, slots = channels(schedules)
            n = parts_of(collective, parts, lanes, slots, count)
            counts = part_counts(count, n, case.size)
            tables = [
                [lowered(schedules[r], collective, size, r, c, case.size, piece_bytes=128, segment_bytes=full.get("segment_bytes"), weights=weights[r]) for c in counts]
                for r in range(size)
            ]  # fmt: skip
            case.expected(0)
            calls.append((case, name, slots, n, counts, tables, room.used))
    on_cpu.library()

    def work(rank: int) -> None:
        group, held = world.group(rank), []
        for case, name, slots, parts, counts, tables, _ in calls:
            mine = tables[rank]
            words = [(ctypes.c_int64 * len(each.words))(*each.words) for each in mine]
            scratch, slot = (max(getattr(each, of) for each in mine) for of in ("scratch_bytes", "slot_bytes"))
            memory = ctypes.create_string_buffer(parts * (scratch + slot) + 64)
            held += [words, memory]
            at_64 = -(-ctypes.addressof(memory) // 64) * 64
            source, target = case.addresses(rank)
            case.fill(rank)
            steps = Steps(
                tuple(map(ctypes.addressof, words)), parts, slots, counts[0] * case.size, target, source, target, at_64,
                scratch, slot,
            )  # fmt: skip
            blocks = parts * max(each.blocks for each in mine)
            on_cpu.run("steps", case.dtype, case.op, blocks, THREADS, group, steps)
            if case.op == "max" or (case.collective, name) in (("broadcast", name), ("allgather", name)) or size == 2:
                case.check(rank, name)
            else:
                near(case, rank, name)
        assert world.report(rank)[at.R_CODE] == 0

    fork(world, work)


def near(case: Case, rank: int, name: str) -> None:
    """A mean in another order than the ranks': within a few roundings of it, where it is finite."""
    wanted = case.expected(rank)
    n = len(wanted) // case.size
    found = (ctypes.c_float * n).from_address(case.addresses(rank)[1])
    right = (ctypes.c_float * n).from_buffer_copy(wanted)
    start = case.chunk(rank)[0] // 4 if case.collective == "reduce_scatter" else 0
    for i in range(n if case.collective != "reduce" or rank == case.root else 0):
        operands = [abs((ctypes.c_float * case.count).from_buffer_copy(d)[start + i]) for d in case.data]
        close = abs(found[i] - right[i]) <= 1e-6 * sum(operands)
        assert close or found[i] == right[i] or right[i] != right[i], f"rank {rank}: {name}: {i}: {found[i]} {right[i]}"


def test_fold_on_any_alignment():
    """The local fold, from 1 to 9 operands, aligned and not, in place and not: the CPU's bits, and nothing beside them."""
    memory = Memory(1 << 20)
    on_cpu.library()
    for i, (dtype, op) in enumerate(on_cpu.KINDS):
        size = ITEMSIZE[dtype]
        for n, count, offset in ((2, 1000, 0), (4, 77, 1), (9, 5, 3), (3, 640, 2), (1, 33, 1)):
            memory.used = 0
            data = [POOL[dtype][(i + 211 * k) * size :][: count * size] for k in range(n)]
            places = [memory.take(count * size + 64) + size * offset * (k % 2) for k in range(n)]
            for place, each in zip(places, data, strict=True):
                ctypes.memmove(place, each, len(each))
            target = memory.take(count * size + 64) + size * offset if n % 2 else places[n - 1]
            ctypes.memset(target + count * size, 0x5A, 16)
            on_cpu.run("fold", dtype, op, 2, 3, Places.of([target]), Places.of(places), Bytes(count * size))
            wanted = folded(dtype, op, data)
            assert ctypes.string_at(target, count * size) == wanted, (dtype, op, n, count, offset)
            assert ctypes.string_at(target + count * size, 16) == b"\x5a" * 16


def test_who_never_comes():
    """A rank that stays away is named, with the block and the epoch; kernels after that return at once."""
    world = World(3)
    on_cpu.library()

    def work(rank: int) -> None:
        if rank == 1:
            return
        group = world.group(rank, patience=300_000_000)
        for _ in range(2):
            on_cpu.run("exchange", "float32", "sum", 2, THREADS, group, exchange(Case(world, "allreduce", "float32", "sum", 64), rank))
        report = world.report(rank)
        assert report[at.R_CODE] == at.TIMED_OUT
        assert report[at.R_PEER] == 1
        assert (report[at.R_KIND], report[at.R_WANTED], report[at.R_SEEN]) == (0, 1, 0)

    fork(world, work)


def test_the_host_can_stop_a_kernel():
    world = World(2)
    on_cpu.library()
    (ctypes.c_uint32 * at.REPORT_WORDS).from_address(world.reports[0])[at.R_STOP] = 1
    on_cpu.run("one_shot", "float32", "sum", 1, THREADS, world.group(0), Call(world.inputs[0], world.outputs[0], 64, piece=SHAPE.slot_bytes))
    assert world.report(0)[at.R_CODE] == at.STOPPED
