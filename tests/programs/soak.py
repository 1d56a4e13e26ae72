"""Calls of every kind back to back, with stragglers: python -m tests.programs.soak CALLS [SEED].

Random collectives, algorithms and sizes, mostly short ones, all results looked at; now and then one rank is late. The
rank's memory must not grow.
"""

import resource
import sys
import time
from random import Random
from typing import Any

import torch

import collectives
from collectives.algorithms import every
from tests.programs import world
from tests.programs.engine_report import Report

WARM_UP = 2000  # calls, in which all programs are made


def resident_kib() -> int:
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * resource.getpagesize() // 1024


def expected(collective: str, rank: int, size: int, root: int, turn: int) -> int:
    """What is everywhere in the result, where everyone gives rank + turn."""
    total = size * (size - 1) // 2 + size * turn
    if collective == "broadcast":
        return root + turn
    return total if collective != "reduce" or rank == root else rank + turn


def call(comm: collectives.Communicator, random: Random, turn: int, report: Report) -> None:
    kinds = [(a.collective, a.name) for a in every() if not a.refusal(comm.size, comm.topology.nodes)]
    collective, name = random.choice(kinds)
    count = random.choice([1, 3, 16, 64, 500, 1000, 4096, 4096, 20_000, 20_000 if random.random() < 0.9 else 500_000])
    root, chosen = random.randrange(comm.size), random.random() < 0.5
    how: dict[str, Any] = {"algorithm": name} if chosen else {}
    if collective in ("broadcast", "reduce"):
        how["root"] = root
    if random.randrange(100) == 0 and random.randrange(comm.size) == comm.rank:
        time.sleep(0.002)
    mine = comm.rank + turn % 50
    if collective not in ("allreduce", "reduce", "broadcast", "reduce_scatter"):
        move(comm, collective, count, mine - comm.rank, root, how, report)
        return
    x = torch.full((count,), mine, dtype=torch.int32)
    result = getattr(comm, collective)(x, **how)
    value = expected(collective, comm.rank, comm.size, root, turn % 50)
    report.check(bool((result == value).all()), f"call {turn}: {collective} of {count} by {how}: not {value}")


def move(
    comm: collectives.Communicator, collective: str, count: int, turn: int, root: int, how: Any, report: Report
) -> None:
    """A collective that reduces nothing, of count elements in all, or for each rank."""
    lengths = [len(range(*collectives.chunk(count, comm.size, rank).indices(count))) for rank in range(comm.size)]
    parts = [torch.full((n,), rank + turn, dtype=torch.int32) for rank, n in enumerate(lengths)]
    mine, whole = parts[comm.rank], torch.cat(parts)
    wanted: torch.Tensor | None = whole
    match collective:
        case "barrier":
            comm.barrier()
            return
        case "allgather":
            out = comm.allgather(mine, torch.empty_like(whole), **how)
        case "gather":
            out = comm.gather(mine, root=root, count=count, **how)
            wanted = whole if comm.rank == root else None
        case "scatter":
            out = comm.scatter(whole, torch.empty_like(mine), root=root, count=count, **how)
            wanted = mine
        case _:
            out = comm.alltoall(whole, **how)
            wanted = mine.repeat(comm.size)
    same = out is None if wanted is None else torch.equal(out, wanted)
    report.check(same, f"{collective} of {count}, turn {turn}, by {how}")


def main(calls: int, seed: int) -> None:
    report, random = Report(), Random(seed)
    torch.set_num_threads(1)
    before = 0
    with world.communicator(timeout=100) as comm:
        for turn in range(calls):
            if turn == min(WARM_UP, calls // 2):
                before = resident_kib()
            call(comm, random, turn, report)
        grown = resident_kib() - before
    report.finish(calls=calls, grown_kib=grown)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
