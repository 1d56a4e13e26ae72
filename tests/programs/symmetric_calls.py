"""Every collective in every kind of memory: python -m tests.programs.symmetric_calls SEED CASES.

Collective, dtype, operation, count, root, and where each rank's arrays lie (in one region, at another offset of it, in
another region, in ordinary memory) are drawn by a seed that all ranks share, so each rank knows whether the call must
be a single pass. Calls follow each other at once, and ranks overwrite what they passed as soon as a call returns.
"""

import sys
import time
from random import Random
from typing import Any

import torch

import collectives
from collectives.selection import LEAST_PASS
from tests.programs.engine_numbers import PAIRS, bits, inputs, noise, result, torch_dtype
from tests.programs.engine_report import Report

LARGEST, GUARD = 700_000, 64  # bytes
MIXED = [("float32", "sum"), *PAIRS[:20:3], *PAIRS[20::9]]  # every kernel is tested elsewhere
KINDS = ("one region", "another offset", "another region", "ordinary")


class Places:
    """Arrays of each kind, in the middle of bytes that nobody may touch."""

    def __init__(self, comm: collectives.Communicator):
        self.rank = comm.rank
        self.regions = [comm.empty(4 * LARGEST, "uint8") for _ in range(3)]
        self.handed_out: list[tuple[torch.Tensor, int, int]] = []

    def take(self, kind: str, x: torch.Tensor) -> torch.Tensor:
        """An array of this kind with x in it."""
        taken, n = len(self.handed_out), x.numel() * x.element_size()
        start = GUARD + taken * 2 * LARGEST + (64 * (1 + self.rank) if kind == "another offset" else 0)
        if kind == "ordinary":
            whole = torch.empty(4 * LARGEST, dtype=torch.uint8)
        else:
            whole = self.regions[self.rank % 2 if kind == "another region" else 2]
        whole[start - GUARD : start + n + GUARD] = 0x4D
        self.handed_out.append((whole, start, n))
        found = whole[start : start + n].view(x.dtype)
        bits(found).copy_(bits(x))
        return found

    def give_back(self) -> bool:
        """Spoil all of them; whether the bytes around are as they were."""
        intact = True
        for whole, start, n in self.handed_out:
            around = torch.cat([whole[start - GUARD : start], whole[start + n : start + n + GUARD]])
            intact = intact and bool((around == 0x4D).all())
            whole[start : start + n] = 0xA7
        self.handed_out.clear()
        return intact


def run(comm: collectives.Communicator, places: Places, random: Random, case: str, report: Report) -> None:
    dtype, op = random.choice(MIXED)
    size = torch_dtype(dtype).itemsize
    most = LARGEST // size
    count = random.choice((0, 1, comm.size - 1, comm.size + 1, 31, 129, 1009, 4099, 20_011, most))
    seed, root, name = random.randrange(1 << 30), random.randrange(comm.size), random.choice(CALLS)
    if random.random() < 0.5:
        kinds = [[random.choice(KINDS[:3])] * comm.size for _ in range(2)]
    else:
        kinds = [[random.choice(KINDS) for _ in range(comm.size)] for _ in range(2)]
    part = [collectives.chunk(count, comm.size, rank) for rank in range(comm.size)]
    mine, kind = part[comm.rank], [each[comm.rank] for each in kinds]
    shared = [[each != "ordinary" for each in both] for both in kinds]
    at_root, apart = comm.rank == root, random.random() < 0.4
    named: dict[str, Any] = {"algorithm": "one_pass"} if random.random() < 0.5 else {}
    what = f"{case}: {name} {op} of {count} {dtype}, root {root}, in {kinds}{', out of place' * apart}, {named}"
    if name in ("broadcast", "allgather"):
        wanted = noise(dtype, count, torch.Generator().manual_seed(seed))
    else:
        given = inputs(dtype, op, comm.size, count, seed)
        wanted = result(dtype, op, given)
    if name == "allreduce":
        x = places.take(kind[0], given[comm.rank])
        out = places.take(kind[1], torch.zeros_like(wanted)) if apart else x
        comm.allreduce(x, out=out if apart else None, op=op, **named)
        one_pass = all(shared[apart])
    elif name == "reduce":
        x = places.take(kind[0], given[comm.rank])
        out = places.take(kind[1], torch.zeros_like(wanted)) if apart and at_root else x
        comm.reduce(x, root, out if apart and at_root else None, op, **named)
        wanted = wanted if at_root else given[comm.rank]
        one_pass = all(shared[apart and rank == root][rank] for rank in range(comm.size))
    elif name == "reduce_scatter":
        x, out = places.take(kind[0], given[comm.rank]), places.take(kind[1], torch.zeros_like(wanted[mine]))
        comm.reduce_scatter(x, out, op, **named)
        wanted, one_pass = wanted[mine], all(shared[0])
    elif name == "allgather":
        out = places.take(kind[1], torch.zeros_like(wanted))
        x = out[mine] if apart else places.take(kind[0], wanted[mine])
        bits(x).copy_(bits(wanted[mine]))
        comm.allgather(x, out, **named)
        one_pass = all(shared[1])
    else:
        x = out = places.take(kind[0], wanted if at_root else torch.zeros_like(wanted))
        comm.broadcast(x, root, **named)
        one_pass = shared[0][root]
    report.equal(out, wanted, what)
    one_pass = one_pass and count > 0 and (bool(named) or count * size >= LEAST_PASS)
    assert isinstance(comm._last, tuple)
    report.check(comm._last[0].one_pass == one_pass, f"{what}: ran {collectives.last_choice(comm)}")
    if name != "broadcast" and out is not x and not (name == "allgather" and apart):
        report.equal(
            x, wanted[:0] if not x.numel() else (wanted[mine] if name == "allgather" else given[comm.rank]), what
        )
    report.check(places.give_back(), f"{what}: wrote beside it")


CALLS = ("allreduce", "reduce_scatter", "allgather", "broadcast", "reduce")


def back_to_back(comm: collectives.Communicator, report: Report) -> None:
    """Plans of all kinds in a row, with nothing between them but what an optimizer would write."""
    count = 1 + 5 * comm.size
    x, y = comm.empty(count, "int64"), comm.empty(count, "int64")
    part, sums = (
        comm.empty(count, "int64")[: len(range(*collectives.chunk(count, comm.size, comm.rank).indices(count)))],
        0,
    )
    mine = collectives.chunk(count, comm.size, comm.rank)
    calls: list[Any] = [
        comm.plan("broadcast", x, root=comm.size - 1, algorithm="one_pass"),
        comm.plan("allreduce", x, algorithm="one_pass"),
        comm.plan("reduce_scatter", x, part, algorithm="one_pass"),
        comm.plan("allgather", part, y, algorithm="one_pass"),
        comm.plan("reduce", y, root=0, algorithm="one_pass"),
    ]
    for turn in range(400):
        x.fill_(turn + comm.rank)
        for call in calls:
            call()
        last, size = turn + comm.size - 1, comm.size
        report.check(bool((part == last * size * size).all()), f"turn {turn}: {part} of {mine}")
        report.check(bool((x == last * size).all()), f"turn {turn}: {x}")
        sums = last * size * size * (size if comm.rank == 0 else 1)
        report.check(bool((y == sums).all()), f"turn {turn}: {y}, not {sums}")
    report.check(all(call._program.one_pass for call in calls), "back to back, not all in one pass")


def main(seed: str, cases: int) -> None:
    report, random = Report(), Random(seed)
    with collectives.Communicator(timeout=60) as comm:
        places, own = Places(comm), Random(comm.rank)
        for number in range(cases):
            run(comm, places, random, f"case {number}", report)
            if own.random() < 0.02:
                time.sleep(0.003)
        report.time("cases")
        back_to_back(comm, report)
        report.time("back to back")
    report.finish()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
