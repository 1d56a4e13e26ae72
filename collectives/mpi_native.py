"""The MPI library's own allreduce: the baseline, and a choice for those who ask for it by name."""

from typing import Any

from collectives.buffers import View
from collectives.errors import UnsupportedError

TYPES = {
    "float32": "FLOAT", "float64": "DOUBLE", "int8": "INT8_T", "int16": "INT16_T", "int32": "INT32_T",
    "int64": "INT64_T", "uint8": "UINT8_T", "uint16": "UINT16_T", "uint32": "UINT32_T", "uint64": "UINT64_T",
}  # fmt: skip
OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "and": "BAND", "or": "BOR", "xor": "BXOR"}


def buffer(view: View) -> list[Any]:
    """The view as mpi4py takes it. UnsupportedError where MPI libraries have no type for it."""
    from mpi4py import MPI

    if view.dtype not in TYPES:
        raise UnsupportedError(f"MPI libraries do not reduce {view.dtype}; treering's own algorithms do")
    return [MPI.memory.fromaddress(view.address, view.n_bytes), getattr(MPI, TYPES[view.dtype])]


def allreduce(comm: Any, source: View, target: View, op: str) -> None:
    """comm.Allreduce on the views' memory."""
    from mpi4py import MPI

    if op not in OPS:
        raise UnsupportedError(f"MPI libraries have no op {op!r}; treering's own algorithms do")
    sent = MPI.IN_PLACE if source.address == target.address else buffer(source)
    comm.Allreduce(sent, buffer(target), op=getattr(MPI, OPS[op]))
