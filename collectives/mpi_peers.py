"""Ranks that an MPI library has started."""

import os
import resource
import signal
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate, pairwise
from math import inf
from threading import get_ident
from typing import Any

from collectives.errors import CollectiveTimeout
from collectives.peers import Peers

_late: list[Any] = []  # requests with their buffers, into which MPI may write still


class MpiPeers(Peers):
    """The ranks of an mpi4py communicator, which is ours from here on; its errors are returned, not fatal.

    turn: lets calls under way go on while `meet` waits. timeout: seconds that others may be late.
    """

    def __init__(self, comm: Any, turn: Callable[[], None] = lambda: None, timeout: float = inf):
        from mpi4py import MPI

        self.mpi, self.turn, self.timeout = comm, turn, timeout
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
        wait(self.mpi.Iallgather([array("q", [len(mine)]), MPI.INT64_T], [lengths, MPI.INT64_T]), self.timeout)
        everything = bytearray(sum(lengths))
        said = [everything, list(lengths), MPI.BYTE]
        wait(self.mpi.Iallgatherv([mine, MPI.BYTE], said), self.timeout)
        ends = list(accumulate(lengths, initial=0))
        return [bytes(everything[start:end]) for start, end in pairwise(ends)]

    def meet(self) -> None:
        meet(self.mpi, self.turn, self.timeout)

    def split(self, color: int | None, key: int) -> "MpiPeers | None":
        from mpi4py import MPI

        meet(self.mpi, self.turn, self.timeout)
        part = self.mpi.Split(MPI.UNDEFINED if color is None else color, key)
        return None if part == MPI.COMM_NULL else MpiPeers(part, self.turn, self.timeout)

    def host(self) -> "MpiPeers":
        from mpi4py import MPI

        return MpiPeers(self.mpi.Split_type(MPI.COMM_TYPE_SHARED), self.turn, self.timeout)

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


def meet(comm: Any, turn: Callable[[], None], timeout: float = inf) -> None:
    """Before any collective of the MPI library, which would let nothing move until it returns. Collective."""
    wait(comm.Ibarrier(), timeout, turn)


def wait(request: Any, timeout: float, turn: Callable[[], None] = lambda: None) -> None:
    """Until a collective of the MPI library is done; CollectiveTimeout after so many seconds."""
    began = time.monotonic()
    try:
        while not request.Test():
            turn()
            os.sched_yield()
            if time.monotonic() - began > timeout:
                raise CollectiveTimeout(
                    f"not all ranks came within {timeout:g} s to what they do together, as making memory or "
                    "communicators; timeout= or TREERING_TIMEOUT sets another deadline"
                )
    except BaseException:
        _late.append(request)
        raise
