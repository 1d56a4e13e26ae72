"""Measure every collective, dtype and operation on sizes that do not divide; rank 0 prints what was wrong."""

import json
from typing import Any

from mpi4py import MPI

import collectives
from collectives.algorithms import names
from collectives.contract import COLLECTIVES
from collectives.dtypes import BITWISE, DTYPES, FLOATS, ITEMSIZE, OPS
from tuner.contenders import native_lacks
from tuner.measure import Job, Session

MOVES = ("broadcast", "allgather")


def jobs():
    for collective in COLLECTIVES:
        for dtype in DTYPES:
            for op in ("sum",) if collective in MOVES else OPS:
                if (op in BITWISE and dtype in FLOATS) or (op == "avg" and dtype not in FLOATS):
                    continue
                candidates: list[tuple[str, dict[str, Any]]] = [
                    (name, {}) for name in names(collective) if name != "hierarchical"
                ]
                native: list[tuple[str, dict[str, Any]]] = (
                    [] if native_lacks(dtype, op, collective) else [("native", {})]
                )
                # One algorithm in turn for each operation; all of them for the sum.
                chosen = candidates if op == "sum" else [candidates[OPS.index(op) % len(candidates)]]
                for count in (1, 1021):
                    yield Job(
                        collective=collective, dtype=dtype, op=op, nbytes=count * ITEMSIZE[dtype], blocks=1, check=True,
                        candidates=chosen + native,
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
