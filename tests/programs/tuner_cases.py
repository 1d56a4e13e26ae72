"""Measure every algorithm of every collective on sizes that do not divide; rank 0 prints what was wrong."""

import json
from collections.abc import Iterator
from typing import Any

from mpi4py import MPI

import collectives
from collectives.algorithms import every
from collectives.dtypes import ITEMSIZE
from collectives.tables.table import COLLECTIVES
from tuner.contenders import native_lacks
from tuner.guidelines import compositions
from tuner.measure import Job, Session
from tuner.space import Candidate

CALLS = [
    *((collective, dtype, "sum") for collective in COLLECTIVES for dtype in ("float32", "bfloat16", "int8")),
    *(("allreduce", "float32", op) for op in ("prod", "avg", "min", "max")),
    *(("allreduce", "uint16", op) for op in ("and", "or", "xor")),
    *(("reduce_scatter", "float64", "avg"), ("reduce", "float16", "avg")),
]


def jobs() -> Iterator[Job]:
    for collective, dtype, op in CALLS:
        serving = [a.name for a in every(collective) if not (a.needs_nodes or a.lack(comm.size))]
        candidates: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in serving]
        if not native_lacks(dtype, op, collective):
            candidates.append(("native", {}))
        if collective == "allreduce":
            candidates += [
                (made.algorithm, made.params) for made in compositions(collective, lambda _: Candidate("direct"))
            ]
        for count in (1, 1021) if op == "sum" else (1021,):
            yield Job(
                collective=collective, dtype=dtype, op=op, nbytes=count * ITEMSIZE[dtype], blocks=1, check=True,
                candidates=candidates,
            )  # fmt: skip


with collectives.Communicator(timeout=60) as comm:
    session = Session(MPI.COMM_WORLD.Dup(), comm)
    if comm.rank:
        session.follow()
    else:
        faults, wrong, measured = [], [], 0
        for job in jobs():
            outcome = session.measure(job)
            key = job.collective, job.dtype, job.op, job.nbytes
            faults += [(*key, str(candidate), fault) for candidate, fault in outcome.faults.items()]
            wrong += [(*key, str(candidate), count) for candidate, count in outcome.wrong.items() if count]
            measured += len(outcome.times)
        session.stop()
        print(json.dumps({"faults": faults, "wrong": wrong, "measured": measured}))
