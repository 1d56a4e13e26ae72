"""Calls of every kind back to back, with stragglers: python -m tests.programs.soak CALLS [SEED].

Random collectives, algorithms and sizes, mostly short ones, on three communicators in turn, one of which has its ranks
in reverse; all results looked at; now and then one rank is late. With "small" as a third argument, messages of up to a
thousand elements alone. Rank 0 prints how its memory has grown since all programs were made.
"""

import resource
import sys
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import torch

import collectives
from collectives.algorithms import every
from tests.programs import world
from tests.programs.engine_report import Report

WARM_UP = 4000  # calls, in which all programs are made
SMALL = (1, 3, 16, 64, 500, 1000)  # elements


def resident_kib() -> int:
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * resource.getpagesize() // 1024


def expected(collective: str, rank: int, size: int, root: int, turn: int) -> int:
    """What is everywhere in the result, where everyone gives rank + turn."""
    total = size * (size - 1) // 2 + size * turn
    if collective == "broadcast":
        return root + turn
    return total if collective != "reduce" or rank == root else rank + turn


def call(comm: collectives.Communicator, random: Random, turn: int, report: Report, counts: Sequence[int]) -> None:
    fit = (a for a in every() if not a.refusal(comm.size, a.groups(comm.topology)))
    kinds = [(a.collective, a.name) for a in fit]
    collective, name = random.choice(kinds)
    count = random.choice(counts)
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


def main(calls: int, seed: int, counts: Sequence[int]) -> None:
    report, random = Report(), Random(seed)
    torch.set_num_threads(1)
    before, warm_up = 0, min(WARM_UP, calls // 2)
    with world.communicator(timeout=100) as comm:
        reverse, like = comm.split(0, key=-comm.rank), comm.split(0, key=comm.rank)
        assert reverse is not None
        assert like is not None
        comms = (comm, reverse, like)
        for turn in range(calls):
            if turn == warm_up:
                before = resident_kib()
            call(random.choice(comms), random, turn, report, counts)
        after = resident_kib()
        like.close()
        reverse.close()
    report.finish(calls=calls, resident_kib=before, grown_kib=after - before, grown_percent=100 * (after / before - 1))


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        int(sys.argv[2]) if len(sys.argv) > 2 else 0,
        SMALL if sys.argv[3:] == ["small"] else [*SMALL, 4096, 4096, 20_000, 20_000, 500_000],
    )
