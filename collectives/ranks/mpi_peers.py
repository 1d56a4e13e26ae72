"""Ranks that an MPI library has started."""

import atexit
import os
import resource
import signal
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate, pairwise
from threading import get_ident
from typing import Any

from collectives.errors import CollectiveTimeout
from collectives.ranks.peers import Peers
from collectives.says import say

LOOK_SECONDS = 0.05  # between two looks at whether those that are waited for can come
MEND = "timeout= or TREERING_TIMEOUT sets another deadline"
_late: list[Any] = []  # requests that were given up, with buffers into which MPI may write still


class MpiPeers(Peers):
    """The ranks of an mpi4py communicator, which is ours from here on; its errors are returned, not fatal.

    timeout: seconds that any rank may be late. turn: lets calls under way go on while `meet` waits.
    """

    def __init__(self, comm: Any, timeout: float, turn: Callable[[], None] = lambda: None):
        from mpi4py import MPI

        self.mpi, self.timeout, self.turn = comm, timeout, turn
        self.rank, self.size = comm.rank, comm.size
        self.thread = None if MPI.Query_thread() == MPI.THREAD_MULTIPLE else get_ident()
        comm.Set_errhandler(MPI.ERRORS_RETURN)

    @classmethod
    def duplicate(cls, comm: Any, timeout: float, turn: Callable[[], None]) -> "MpiPeers":
        """The ranks of somebody else's communicator. Collective."""
        made, request = comm.Idup()
        if not settled(request, timeout, turn):
            why = f"rank {comm.rank} of {comm.size}: not all ranks made a communicator within {timeout:g} s; {MEND}"
            end_at_exit(comm, request, why)
            raise CollectiveTimeout(why)
        return cls(made, timeout, turn)

    def exchange(self, mine: bytes) -> list[bytes]:
        from mpi4py import MPI

        lengths = array("q", bytes(8 * self.size))
        self._await(self.mpi.Iallgather([array("q", [len(mine)]), MPI.INT64_T], [lengths, MPI.INT64_T]))
        everything = bytearray(sum(lengths))
        self._await(self.mpi.Iallgatherv([mine, MPI.BYTE], [everything, list(lengths), MPI.BYTE]))
        ends = list(accumulate(lengths, initial=0))
        return [bytes(everything[start:end]) for start, end in pairwise(ends)]

    def meet(self) -> None:
        for _ in range(2):  # who comes late finds that others have come; then, whether they are still there
            self._await(self.mpi.Ibarrier(), self.turn)

    def split(self, color: int | None, key: int) -> "MpiPeers | None":
        from mpi4py import MPI

        part = self.mpi.Split(MPI.UNDEFINED if color is None else color, key)
        return None if part == MPI.COMM_NULL else MpiPeers(part, self.timeout, self.turn)

    def host(self) -> "MpiPeers":
        from mpi4py import MPI

        return MpiPeers(self.mpi.Split_type(MPI.COMM_TYPE_SHARED), self.timeout, self.turn)

    def free(self) -> None:
        self.mpi.Free()

    def end_job(self) -> None:
        end_job(self.mpi, 1)

    def _await(self, request: Any, turn: Callable[[], None] = lambda: None) -> None:
        _late.append(request)
        if not settled(request, self.timeout, turn, lambda: self.look()):
            raise CollectiveTimeout(f"rank {self.rank}: others did not come within {self.timeout:g} s; {MEND}")
        _late.pop()

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


def end_at_exit(comm: Any, request: Any, why: str) -> None:
    """Ranks that come late will wait for this one, which has given the request up: its end is the job's."""
    pid = os.getpid()

    def leave() -> None:
        if os.getpid() == pid and not request.Test():
            say(why)
            end_job(comm, 1)

    atexit.register(leave)


def settled(
    request: Any, timeout: float, turn: Callable[[], None] = lambda: None, look: Callable[[], None] = lambda: None
) -> bool:
    """Wait for a request of the MPI library, whose blocking calls let nothing move; False where there is no more time.

    turn: called all the while. look: now and then; what it raises is raised.
    """
    looked = began = time.monotonic()
    while not request.Test():
        turn()
        os.sched_yield()
        now = time.monotonic()
        if now - began > timeout:
            return False
        if now - looked > LOOK_SECONDS:
            looked = now
            look()
    return True
