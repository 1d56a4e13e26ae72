"""Ranks whose GPU is emulated (tests/cuda/emulator.py): every collective, path and kind of memory; streams; the end."""

import gc
import itertools
import sys
import time
from typing import Any

import msgspec

from collectives import chunk
from collectives.cuda import device as on_device
from collectives.cuda.choice import AWARE, STAGED
from collectives.dtypes import ITEMSIZE
from collectives.errors import UnsupportedError
from collectives.tables.table import Table
from tests.cuda.emulator import DeviceArray, Emulator
from tests.cuda.ranks_on_cpu import folded, numbers
from tests.programs.world import communicator
from tuner.gpu import measure, place_of_gpu, rules

POOL = {dtype: numbers(dtype, 6000, 3) for dtype in ("float32", "bfloat16", "int64")}
HOWS: tuple[dict[str, Any], ...] = (
    {}, {"algorithm": "one_shot"}, {"algorithm": "two_shot", "blocks": 3, "chunk_bytes": 8192},
    {"algorithm": "two_shot"},
    {"algorithm": AWARE}, {"algorithm": STAGED, "piece_bytes": 4096, "slots": 2},
)  # fmt: skip


def main() -> None:
    gpu = Emulator()
    on_device.driver = lambda: gpu  # type: ignore[assignment, attr-defined]
    on_device.cuda_aware = lambda: True  # type: ignore[attr-defined] # its memory is the host's
    with communicator() as comm:
        data = inputs(comm.size)
        allreduces(comm, gpu, data)
        others(comm, gpu, data)
        moves(comm, gpu, data)
        plans(comm, gpu, data)
        streams(comm, gpu, data)
        symmetric(comm, gpu, data)
        table = tuned(comm, gpu)
    follows(table, gpu, data)
    assert not gpu.opened, "mapped memory is left"
    assert not gpu.registered, "pinned memory is left"


def inputs(size: int):
    def of(dtype: str, count: int, rank: int, turn: int = 0) -> bytes:
        item = ITEMSIZE[dtype]
        at = (rank * 797 + turn * 131) % 900 * item
        return POOL[dtype][at:][: count * item]

    return lambda dtype, count, turn=0: [of(dtype, count, rank, turn) for rank in range(size)]


def finish(gpu: Emulator) -> None:
    gpu.synchronize(gpu.current)


def check(found, wanted: bytes, what: object) -> None:
    assert found.read() == wanted, f"{what} is wrong"


def allreduces(comm, gpu: Emulator, data) -> None:
    for turn, (dtype, how) in enumerate(itertools.product(POOL, HOWS)):
        for count in (1, 5000):
            given = data(dtype, count, turn)
            op = "avg" if turn % 3 == 0 and dtype != "int64" else "max" if turn % 3 == 1 else "sum"
            x = gpu.new(dtype, count).write(given[comm.rank])
            if turn % 2:
                out = gpu.new(dtype, count)
                assert comm.allreduce(x, out, op, **how) is out
            else:
                out = comm.allreduce(x, op=op, **how)
                assert out is x
            finish(gpu)
            check(out, folded(dtype, op, given), (dtype, op, count, how))
    for name, params in (("ring", {"segment_bytes": 1024, "parts": 2}), ("double_tree", {}), ("ring", {"slots": 2})):
        given = data("int64", 3001)
        x = gpu.new("int64", 3001).write(given[comm.rank])
        for _ in range(2):
            comm.allreduce(x, op="max", algorithm=name, **params)
        finish(gpu)
        check(x, folded("int64", "max", given), name)
    xs = [gpu.new("float32", n).write(data("float32", n)[comm.rank]) for n in (3, 700)]
    assert comm.allreduce(xs) is xs
    finish(gpu)
    for x in xs:
        check(x, folded("float32", "sum", data("float32", x.shape[0])), "a list")


def others(comm, gpu: Emulator, data) -> None:
    for how in ({}, {"algorithm": STAGED}, {"algorithm": AWARE}):
        for dtype, count in (("float32", 1001), ("bfloat16", 4097), ("int64", 2)):
            item, given, root = ITEMSIZE[dtype], data(dtype, count, 7), comm.size - 1
            mine = chunk(count, comm.size, comm.rank)
            sums = folded(dtype, "sum", given)
            part = comm.reduce_scatter(gpu.new(dtype, count).write(given[comm.rank]), op="sum", **how)
            finish(gpu)
            check(part, sums[mine.start * item : mine.stop * item], ("reduce_scatter", dtype, how))
            whole = comm.allgather(part, gpu.new(dtype, count), **how)
            finish(gpu)
            check(whole, sums, ("allgather", dtype, how))
            x = gpu.new(dtype, count).write(given[comm.rank])
            assert comm.reduce(x, root, **how) is x
            finish(gpu)
            check(x, sums if comm.rank == root else given[comm.rank], ("reduce", dtype, how))
            comm.broadcast(x, root, **how)
            finish(gpu)
            check(x, sums, ("broadcast", dtype, how))


def moves(comm, gpu: Emulator, data) -> None:
    """Gather, scatter and alltoall, by schedules and through the host; chunks of all lengths, none included."""
    size, rank = comm.size, comm.rank
    hows: tuple[dict[str, Any], ...] = ({}, {"algorithm": "binomial_tree"}, {"algorithm": STAGED})
    for how, (dtype, count) in itertools.product(hows, (("float32", 1001), ("bfloat16", 4097), ("int64", 2))):
        item, root = ITEMSIZE[dtype], size - 1
        whole, mine = data(dtype, count, 3)[0], chunk(count, size, rank)
        part = whole[mine.start * item : mine.stop * item]
        x = gpu.new(dtype, mine.stop - mine.start).write(part)
        found = comm.gather(x, None if rank == 0 else gpu.new(dtype, count), root, count=count, **how)
        finish(gpu)
        assert (found is None) == (rank != root)
        if found is not None:
            check(found, whole, ("gather", dtype, how))
        given = gpu.new(dtype, count).write(whole) if rank == root else bytearray(8) if rank else None  # not looked at
        back = comm.scatter(given, gpu.new(dtype, mine.stop - mine.start), root, count=count, **how)
        finish(gpu)
        check(back, part, ("scatter", dtype, how))
        how = {"algorithm": "bruck"} if "tree" in how.get("algorithm", "") else how
        everyone = data(dtype, count, 5)
        got = comm.alltoall(gpu.new(dtype, count).write(everyone[rank]), **how)
        finish(gpu)
        wanted = b"".join(theirs[mine.start * item : mine.stop * item] for theirs in everyone)
        check(got, wanted, ("alltoall", dtype, count, how))
    even = comm.gather(gpu.new("int64", 2).write(data("int64", 2)[rank]))
    finish(gpu)
    if rank == 0:
        check(even, b"".join(data("int64", 2)), "gather of equal chunks")
    work = comm.scatter(even, gpu.new("int64", 2), blocking=False)
    check(work.synchronize(60), data("int64", 2)[rank], "scatter, without blocking")
    refused(lambda: comm.alltoall(gpu.new("int64", 6), None, [6 // size] * size), "alltoall with counts is for memory")
    x = gpu.new("int64", 2 * size)
    inside = DeviceArray(x.address, "int64", (2,), x)
    refused(lambda: comm.reduce_scatter(x, inside), "out overlaps x")
    refused(lambda: comm.gather(gpu.new("int64", 2), algorithm=AWARE), "gather is not made of messages")


def refused(call, words: str) -> None:
    try:
        call()
    except (UnsupportedError, ValueError) as error:
        assert words in str(error), error  # noqa: PT017
    else:
        raise AssertionError(f"not refused: {words}")


def plans(comm, gpu: Emulator, data) -> None:
    """A plan runs again on what its memory holds by then."""
    x, out = gpu.new("float32", 700), gpu.new("float32", 700)
    plan = comm.plan("allreduce", x, out, "max")
    root = comm.plan("broadcast", out, comm.size - 1, algorithm=STAGED)
    for turn in range(3):
        given = data("float32", 700, turn)
        x.write(given[comm.rank])
        assert plan() is out
        finish(gpu)
        check(out, folded("float32", "max", given), ("plan", turn))
        out.write(given[comm.rank])
        assert root() is out
        finish(gpu)
        check(out, given[-1], ("plan through the host", turn))
    assert plan.choice.algorithm == "one_shot"
    refused(lambda: comm.plan("alltoall", x, out, [1], [1]), "alltoall with counts is for memory")


def streams(comm, gpu: Emulator, data) -> None:
    """A call comes after what the caller's stream had, and before what it gets next; several are under way at once."""
    given = data("float32", 2000)
    wanted = folded("float32", "sum", given)
    for how in HOWS[0], HOWS[-1]:
        source, x, after = (gpu.new("float32", 2000) for _ in range(3))
        source.write(given[comm.rank])
        gpu.current = gpu.stream()
        gpu.streams[gpu.current].work.put(lambda: time.sleep(0.05))
        gpu.copy(x.address, source.address, x.n_bytes, gpu.current)
        work = comm.allreduce(x, blocking=False, **how)
        y = gpu.new("float32", 2000).write(given[comm.rank])
        other = comm.allreduce(y, blocking=False, **how)
        assert work.wait() is x
        gpu.copy(after.address, x.address, x.n_bytes, gpu.current)
        while not other.done():
            time.sleep(1e-4)
        finish(gpu)
        check(after, wanted, ("after a work", how))
        check(y, wanted, ("a second work", how))
        gpu.current = 0
    z = gpu.new("float32", 2000).write(given[comm.rank])
    assert comm.allreduce(z, blocking=False).synchronize(60) is z
    check(z, wanted, "a work that the host waits for")


def symmetric(comm, gpu: Emulator, data) -> None:
    """Memory of all ranks, mapped: used where it lies, freed when nobody has it, and mixed with ordinary memory."""
    x = comm.empty(3000, "float32", device="cuda")
    held = len(gpu.opened)
    given = data("float32", 3000)
    wanted = folded("float32", "sum", given)
    for mixed in (False, True):
        y = gpu.new("float32", 3000) if mixed and comm.rank == 0 else x
        y.write(given[comm.rank])
        comm.allreduce(y, algorithm="two_shot")
        finish(gpu)
        comm.barrier()
        check(y, wanted, ("symmetric", mixed))
    del x, y
    gc.collect()
    z = comm.empty((2, 10), "bfloat16", device="cuda:0")
    assert len(gpu.opened) == held, "memory that nobody uses was not freed"
    assert z.shape == (2, 10)


def tuned(comm, gpu: Emulator) -> Table:
    """A table from the tuner's own measurement of all candidates for two sizes."""
    measured = [
        (n, measure(comm, lambda count: gpu.new("float32", count), "allreduce", n, turns=1)) for n in (64, 2048)
    ]
    assert {each.algorithm for each in measured[0][1]} >= {"one_shot", "two_shot", "ring", STAGED}
    for collective in ("reduce", "broadcast", "reduce_scatter", "allgather", "gather", "scatter", "alltoall"):
        times = measure(comm, lambda count: gpu.new("float32", count), collective, 40, turns=1)
        assert {each.algorithm for each in times} >= {"direct", STAGED}, (collective, times)
    return Table(topology=place_of_gpu(comm), rules=rules("allreduce", measured)).check()


def follows(table: Table, gpu: Emulator, data) -> None:
    """Calls go by the rules of a table for this GPU, and by none of a table for another."""
    for device in ("emulated", "another"):
        known = msgspec.structs.replace(table, topology=msgspec.structs.replace(table.topology, device=device))
        with communicator(table=known) as comm:
            x = gpu.new("float32", 16).write(data("float32", 16)[comm.rank])
            comm.allreduce(x, op="max")
            finish(gpu)
            check(x, folded("float32", "max", data("float32", 16)), device)
            chosen = comm._device().last
            assert chosen is not None
            assert ("the rule for" in chosen.reason) == (device == "emulated"), chosen
            assert device == "another" or chosen.algorithm == table.rules[0].algorithm


if __name__ == "__main__":
    main()
    sys.stdout.flush()
