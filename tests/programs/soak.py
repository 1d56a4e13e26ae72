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


def expected(collective: str, rank: int, size: int, root: int, turn: int) -> int | None:
    """What is everywhere in the result, where everyone gives rank + turn; None where it differs from chunk to chunk."""
    total = size * (size - 1) // 2 + size * turn
    if collective == "allgather":
        return None
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
    if collective == "allgather":
        x = torch.full((len(range(count)[collectives.chunk(count, comm.size, comm.rank)]),), mine, dtype=torch.int32)
        out = comm.allgather(x, torch.empty(count, dtype=torch.int32), **how)
        wanted = torch.cat(
            [
                torch.full((len(range(count)[collectives.chunk(count, comm.size, rank)]),), rank + turn % 50)
                for rank in range(comm.size)
            ]
        )
        report.check(torch.equal(out, wanted.int()), f"call {turn}: allgather of {count} by {how}")
        return
    x = torch.full((count,), mine, dtype=torch.int32)
    result = getattr(comm, collective)(x, **how)
    value = expected(collective, comm.rank, comm.size, root, turn % 50)
    report.check(bool((result == value).all()), f"call {turn}: {collective} of {count} by {how}: not {value}")


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
