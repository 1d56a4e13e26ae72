"""One instant at which all ranks of a host begin: barriers of MPI libraries leave them half a microsecond apart."""

import mmap
import os
import time
from typing import Any

LEAD_NS, CROWDED_LEAD_NS = 1000, 10_000  # from the last rank's arrival until all begin


class Start:
    """All ranks of a host begin at one instant of the clock that they share, to a turn of a loop.

    board: shared memory, int64, 8 for each rank. crowded: more ranks than cores, so who waits yields.
    """

    def __init__(self, board: "memoryview[int]", rank: int, size: int, crowded: bool):
        self._board, self._rank, self._size, self._crowded = board, rank, size, crowded
        self._turn = self._last = 0

    def __call__(self) -> int:
        """Returns once everyone has come here: when this rank began, in nanoseconds of time.perf_counter_ns."""
        board, now, crowded = self._board, time.perf_counter_ns, self._crowded
        self._turn += 1
        if self._rank == 0:
            for place in range(8, 8 * self._size, 8):
                while board[place] < self._turn:
                    if crowded:
                        os.sched_yield()
            at = board[0] = now() + (CROWDED_LEAD_NS if crowded else LEAD_NS)
        else:
            board[8 * self._rank] = self._turn
            while (at := board[0]) == self._last:
                if crowded:
                    os.sched_yield()
            self._last = at
        while (begin := now()) < at:
            if crowded:
                os.sched_yield()
        return begin

    @classmethod
    def among(cls, world: Any) -> "Start":
        """Over memory that all ranks of an mpi4py communicator on this host map. Collective."""
        path = None
        if world.rank == 0:
            file = os.memfd_create("treering-start")  # left open until the others have come
            os.ftruncate(file, 64 * world.size)
            path = f"/proc/{os.getpid()}/fd/{file}"
        with open(world.bcast(path), "r+b") as opened:
            board = memoryview(mmap.mmap(opened.fileno(), 64 * world.size)).cast("q")
        return cls(board, world.rank, world.size, world.size > len(os.sched_getaffinity(0)))
