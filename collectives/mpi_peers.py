"""Ranks that an MPI library has started."""

import os
import resource
import signal
from array import array
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate, pairwise
from threading import get_ident
from typing import Any

from collectives.peers import Peers


class MpiPeers(Peers):
    """The ranks of an mpi4py communicator, which is ours from here on; its errors are returned, not fatal.

    turn: lets calls under way go on while `meet` waits.
    """

    def __init__(self, comm: Any, turn: Callable[[], None] = lambda: None):
        from mpi4py import MPI

        self.mpi, self.turn = comm, turn
        self.rank, self.size = comm.rank, comm.size
        self.thread = None if MPI.Query_thread() == MPI.THREAD_MULTIPLE else get_ident()
        comm.Set_errhandler(MPI.ERRORS_RETURN)

    @classmethod
    def duplicate(cls, comm: Any, turn: Callable[[], None]) -> "MpiPeers":
        """The ranks of somebody else's communicator. Collective."""
        meet(comm, turn)
        return cls(comm.Dup(), turn)

    def exchange(self, mine: bytes) -> list[bytes]:
        from mpi4py import MPI

        lengths = array("q", bytes(8 * self.size))
        self.mpi.Allgather([array("q", [len(mine)]), MPI.INT64_T], [lengths, MPI.INT64_T])
        everything = bytearray(sum(lengths))
        self.mpi.Allgatherv([mine, MPI.BYTE], [everything, list(lengths), MPI.BYTE])
        ends = list(accumulate(lengths, initial=0))
        return [bytes(everything[start:end]) for start, end in pairwise(ends)]

    def meet(self) -> None:
        meet(self.mpi, self.turn)

    def split(self, color: int | None, key: int) -> "MpiPeers | None":
        from mpi4py import MPI

        part = self.mpi.Split(MPI.UNDEFINED if color is None else color, key)
        return None if part == MPI.COMM_NULL else MpiPeers(part, self.turn)

    def host(self) -> "MpiPeers":
        from mpi4py import MPI

        return MpiPeers(self.mpi.Split_type(MPI.COMM_TYPE_SHARED), self.turn)

    def free(self) -> None:
        self.mpi.Free()

    def end_job(self) -> None:
        end_job(self.mpi, 1)

    @property
    def over(self) -> bool:
        from mpi4py import MPI

        return bool(MPI.Is_finalized())


def end_job(comm: Any, status: int) -> None:
    """End this process and every other rank of the job, not zero: with `status` where the launcher lets us say which.

    MPICH's Hydra may miss that a rank has ended with a status, as MPI_Abort makes it do; it never misses a signal.
    """
    if "HYDI_CONTROL_FD" in os.environ:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with suppress(ValueError):  # only the main thread may
            signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.abort()
    comm.Abort(status)


def meet(comm: Any, turn: Callable[[], None]) -> None:
    """Before any collective of the MPI library, which would let nothing move until it returns. Collective."""
    request = comm.Ibarrier()
    while not request.Test():
        turn()
        os.sched_yield()
