"""What can run a case: treering's algorithms, the MPI library's own collective, and Gloo; each as a function."""

import socket
from array import array
from collections.abc import Callable
from typing import Any

from collectives.contract import REDUCING
from collectives.tables.conditions import PRECISIONS
from tuner.cases import HALVES, Case, chunk
from tuner.composed import COMPOSED, call, composed
from tuner.space import BASELINE, Candidate

Run = Callable[[], object]
AUTOMATIC = Candidate("tuned")  # whatever the table, or the default, chooses

MPI_TYPES = {
    "float32": "FLOAT", "float64": "DOUBLE",
    "int8": "INT8_T", "int16": "INT16_T", "int32": "INT32_T", "int64": "INT64_T",
    "uint8": "UINT8_T", "uint16": "UINT16_T", "uint32": "UINT32_T", "uint64": "UINT64_T",
}  # fmt: skip
MPI_OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "and": "BAND", "or": "BOR", "xor": "BXOR"}


def native_lacks(dtype: str, op: str, collective: str = "allreduce") -> str | None:
    """Why MPI's own collective cannot be a baseline; None where it can."""
    if dtype not in MPI_TYPES:
        return f"MPI has no {dtype}"
    if collective in REDUCING and op not in MPI_OPS:
        return f"MPI has no {op}"
    return None


def treering(comm: Any, case: Case, candidate: Candidate, precision: str | None = None) -> Run:
    """A plan of our own. ValueError or UnsupportedError where the candidate cannot serve.

    What is widened for its precision has no plan, and is called by its method.
    """
    options: dict[str, Any] = dict(candidate.params)
    if candidate != AUTOMATIC:
        options["algorithm"] = candidate.algorithm
    if case.collective in REDUCING:
        options["op"] = case.op
    if case.collective in ("gather", "scatter"):
        options["count"] = case.count
    if case.out is not None:
        options["out"] = case.out
    if precision not in (None, PRECISIONS[0]):
        made: Run = call(comm, case.collective, case.x, **options, precision=precision)
        return made
    plan: Run = comm.plan(case.collective, case.x, **options)
    return plan


def native(mpi: Any, case: Case, op: Any = None) -> Run:
    """The MPI library's own collective, in place where ours is, with its arguments made beforehand.

    op: an MPI.Op in place of the case's own.
    """
    from mpi4py import MPI

    kind = getattr(MPI, MPI_TYPES[case.dtype])
    op = op or getattr(MPI, MPI_OPS.get(case.op, "SUM"))
    x, out = [case.x, kind], [case.out, kind]
    counts = [part.stop - part.start for part in (chunk(case.count, mpi.size, rank) for rank in range(mpi.size))]
    if case.collective == "allreduce":
        return lambda: mpi.Allreduce(MPI.IN_PLACE, x, op)
    if case.collective == "broadcast":
        return lambda: mpi.Bcast(x, 0)
    if case.collective == "reduce":
        return lambda: mpi.Reduce(MPI.IN_PLACE, x, op, 0) if mpi.rank == 0 else mpi.Reduce(x, None, op, 0)
    if case.collective == "reduce_scatter":
        return lambda: mpi.Reduce_scatter(x, out, counts, op)
    if case.collective == "alltoall":
        mine = [counts[mpi.rank]] * mpi.size
        sent, received = [case.x, (counts, None), kind], [case.out, (mine, None), kind]
        return lambda: mpi.Alltoallv(sent, received)
    if case.collective == "scatter":
        parts = [case.x, (counts, None), kind] if mpi.rank == 0 else None
        return lambda: mpi.Scatterv(parts, out, 0)
    gathered = [case.out, (counts, None), kind] if case.out is not None else None
    if case.collective == "gather":
        return lambda: mpi.Gatherv(x, gathered, 0)
    return lambda: mpi.Allgatherv(x, gathered)


def run_of(comm: Any, mpi: Any, case: Case, candidate: Candidate, precision: str | None = None) -> Run:
    if candidate == BASELINE:
        return native(mpi, case)
    make = composed if candidate.algorithm in COMPOSED else treering
    run: Run = make(comm, case, candidate, precision)
    return run


class Gloo:
    """PyTorch's Gloo over the same ranks. Its threads disturb what is timed beside it, so it is timed apart."""

    def __init__(self, mpi: Any):
        """Collective. ImportError where torch is missing, RuntimeError where Gloo cannot connect."""
        import torch.distributed as dist

        self.dist: Any = dist
        dist.init_process_group("gloo", store=self._store(mpi), rank=mpi.rank, world_size=mpi.size)

    def _store(self, mpi: Any) -> Any:
        """A store at rank 0, found by all: its port and address travel over MPI."""
        from mpi4py import MPI

        node = mpi.Split_type(MPI.COMM_TYPE_SHARED)
        host = "127.0.0.1" if node.size == mpi.size else socket.gethostbyname(socket.gethostname())
        node.Free()
        port, address, store = array("q", [0]), bytearray(host.encode().ljust(64)), None
        if mpi.rank == 0:
            store = self.dist.TCPStore(host, 0, mpi.size, is_master=True, wait_for_workers=False)
            port[0] = store.port
        mpi.Bcast([port, MPI.INT64_T])
        mpi.Bcast([address, MPI.BYTE])
        return store or self.dist.TCPStore(address.decode().strip(), port[0], mpi.size, is_master=False)

    def run(self, case: Case) -> Run:
        import torch

        kind = getattr(torch, case.dtype)
        x = case.x if case.dtype in HALVES else torch.frombuffer(case.x, dtype=kind, count=case.count)
        names = {"sum": "SUM", "avg": "AVG", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}
        names |= {"and": "BAND", "or": "BOR", "xor": "BXOR"}
        op = getattr(self.dist.ReduceOp, names[case.op])
        if case.collective == "broadcast":
            return lambda: self.dist.broadcast(x, 0)
        if case.collective == "reduce":
            return lambda: self.dist.reduce(x, 0, op)
        return lambda: self.dist.all_reduce(x, op)

    def close(self) -> None:
        self.dist.destroy_process_group()


def gloo_lacks(collective: str, dtype: str, op: str) -> str | None:
    """Why Gloo cannot be a contender; None where it can."""
    if collective not in ("allreduce", "broadcast", "reduce"):
        return f"Gloo is not timed for {collective}"
    if dtype in ("uint16", "uint32", "uint64", "int16"):
        return f"Gloo has no {dtype}"
    if op == "avg":
        return "Gloo has no avg"
    return None
