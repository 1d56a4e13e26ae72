"""Timing calls of all ranks, interleaved: what the benchmarks of this folder share."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI

import collectives
from tuner import launch
from tuner.statistics import Interval

Calls = Mapping[str, Callable[[], object]]


def interleaved(
    comm: "collectives.Communicator", x: torch.Tensor, calls: Calls, repetitions: int, expected: float | None = None
) -> dict[str, list[float]]:
    """Microseconds of each repetition, the largest over ranks; names in random order within a repetition.

    x is freshly written by its rank, as gradients are, before each call, and all start from a barrier. `expected`:
    every element of x after a right call, which is checked before anything is timed.
    """
    order = random.Random(x.numel())
    times: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        for _ in range(3):
            x.fill_(comm.rank + 1)
            comm.barrier()
            call()
        if expected is not None and not bool((x == expected).all()):
            raise ArithmeticError(f"{name} is wrong at {x.numel()} elements")
    for _ in range(repetitions):
        names = list(calls)
        order.shuffle(names)
        for name in names:
            x.fill_(comm.rank + 1)
            comm.barrier()
            begin = time.perf_counter_ns()
            calls[name]()
            times[name].append((time.perf_counter_ns() - begin) / 1e3)
    world = MPI.COMM_WORLD
    return {name: [max(each) for each in zip(*world.allgather(mine), strict=True)] for name, mine in times.items()}


def repetitions(once: Mapping[str, list[float]], seconds: float, least: int = 15, most: int = 4000) -> int:
    """How many fit into so many seconds, the same on all ranks."""
    total = sum(sorted(each)[len(each) // 2] for each in once.values()) * 1.5 + 20
    return int(MPI.COMM_WORLD.bcast(max(least, min(most, int(seconds * 1e6 / total)))))


def shown(interval: Interval) -> str:
    return f"{interval.median:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def write(path: str | None, comm: "collectives.Communicator", **content: Any) -> None:
    """JSON, with the machine that it was measured on."""
    if path and comm.rank == 0:
        text = json.dumps({"topology": comm.topology.fingerprint, **content}, indent=1)
        Path(path).write_text(text + "\n")


def under_ranks(n: int, module: str, environment: Mapping[str, str] | None = None) -> int | None:
    """None in a rank; otherwise the exit status of this very command, run by n of them."""
    if launch.announced() is not None:
        return None
    ranks = launch.command(n, ["-m", module, *sys.argv[1:]])
    settings = {**os.environ, **ranks.environment, **(environment or {})}
    return subprocess.run(ranks.command, env=settings, check=False).returncode
