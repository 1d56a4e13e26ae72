"""Every kernel, from the very source that devices' compilers read, across processes: the bits of the CPU's kernels."""

from __future__ import annotations

import ctypes

import pytest

from collectives.algorithms import find
from collectives.contract import contract
from collectives.cuda import layout as at
from collectives.cuda.arguments import Bytes, Call, Places, Rounds, Steps
from collectives.cuda.tables import channels, lowered, part_counts, parts_of
from collectives.dtypes import ITEMSIZE
from collectives.verify import weights as weights_of
from tests.cuda import on_cpu
from tests.cuda.cases import POOL, Case, cases, exchange
from tests.cuda.ranks_on_cpu import SHAPE, Memory, World, folded, fork

pytestmark = pytest.mark.skipif(on_cpu.compiler() is None, reason="g++ is not installed: apt-get install g++")

THREADS = 4
SCHEDULES: tuple[tuple[str, str, dict[str, int]], ...] = (
    ("allreduce", "ring", {}), ("allreduce", "ring", {"segment_bytes": 64, "slots": 3}),
    ("allreduce", "double_tree", {"segment_bytes": 128, "slots": 2}), ("allreduce", "recursive_doubling", {}),
    ("allreduce", "two_shot", {}), ("broadcast", "binomial_tree", {}), ("broadcast", "scatter_allgather", {}),
    ("reduce_scatter", "ring", {}), ("allgather", "ring", {}), ("reduce", "binomial_tree", {}),
)  # fmt: skip


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
            arguments = (
                exchange(case, rank)
                if kernel == "exchange"
                else Call(*case.addresses(rank), case.count, piece=SHAPE.slot_bytes)
            )
            on_cpu.run("signals", "int32", "sum", 1, THREADS, group, Rounds(1))  # all have filled theirs
            on_cpu.run(kernel, case.dtype, case.op, 1 + i % 3, THREADS, group, arguments)
            case.check(rank, kernel)
        assert world.report(rank)[at.R_CODE] == 0

    fork(world, work)


@pytest.mark.parametrize("size", [2, 4])
def test_many_epochs(size):
    """200 calls in a row on one window without a rest: whoever is early must not overwrite what others still read."""
    world = World(size)
    turns = [
        (Case(world, "allreduce", "float32", "sum", 1 + 331 * (i % 4), seed=i), ("one_shot", "exchange")[i % 3 > 0])
        for i in range(200)
    ]
    on_cpu.library()
    folded("float32", "sum", turns[0][0].data)

    def work(rank: int) -> None:
        group = world.group(rank)
        for case, kernel in turns:
            case.fill(rank)
            call = (
                exchange(case, rank)
                if kernel == "exchange"
                else Call(*case.addresses(rank), case.count, piece=SHAPE.slot_bytes)
            )
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
        for dtype, op, count, parts in (
            ("float32", "avg", 1003, 3),
            ("bfloat16", "max", 61, 1),
            ("int64", "max", 517, 2),
        ):
            root = i % size if collective in ("broadcast", "reduce") else 0
            full = algorithm.check(**params)
            schedules = algorithm.schedules(size, root=root, **full)
            weights = weights_of(schedules, contract(collective, size, root)) if op == "avg" else [None] * size
            case = Case(world, collective, dtype, op, count, in_place=collective != "reduce", seed=i, root=root)
            lanes, slots = channels(schedules)
            n = parts_of(collective, parts, lanes, slots, count)
            counts = part_counts(count, n, case.size)
            segment = full.get("segment_bytes")
            tables = [
                [
                    lowered(
                        schedules[r], collective, size, r, part, case.size,
                        piece_bytes=128, segment_bytes=segment, weights=weights[r],
                    )
                    for part in counts
                ]
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
    """The local fold, from 1 to 9 operands, aligned and not, in place and not: the CPU's bits, and none beside them."""
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
            on_cpu.run(
                "exchange",
                "float32",
                "sum",
                2,
                THREADS,
                group,
                exchange(Case(world, "allreduce", "float32", "sum", 64), rank),
            )
        report = world.report(rank)
        assert report[at.R_CODE] == at.TIMED_OUT
        assert report[at.R_PEER] == 1
        assert (report[at.R_KIND], report[at.R_WANTED], report[at.R_SEEN]) == (0, 1, 0)

    fork(world, work)


def test_the_host_can_stop_a_kernel():
    world = World(2)
    on_cpu.library()
    (ctypes.c_uint32 * at.REPORT_WORDS).from_address(world.reports[0])[at.R_STOP] = 1
    on_cpu.run(
        "one_shot",
        "float32",
        "sum",
        1,
        THREADS,
        world.group(0),
        Call(world.inputs[0], world.outputs[0], 64, piece=SHAPE.slot_bytes),
    )
    assert world.report(0)[at.R_CODE] == at.STOPPED
