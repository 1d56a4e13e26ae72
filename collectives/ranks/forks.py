"""A child that was forked from a rank is no rank: its parent's communicators say so there, and its end disturbs nobody.

MPI's finalisation would. mpi4py calls it in every process that leaves in order, and in a child it speaks to the
launcher as if the rank itself were leaving, or waits for the other ranks for ever.
"""

import ctypes
import mmap
import os
import platform
import sys
from functools import cache

FORK = 'start children before, or by multiprocessing\'s "spawn"'
RETURN_0 = {"x86_64": b"\x31\xc0\xc3", "aarch64": b"\x00\x00\x80\x52\xc0\x03\x5f\xd6"}
READ_EXECUTE, WRITE_TOO = mmap.PROT_READ | mmap.PROT_EXEC, mmap.PROT_READ | mmap.PROT_EXEC | mmap.PROT_WRITE

_forked: list[int] = []  # this process's number, if it has been forked from a rank that had initialised MPI


def forked() -> bool:
    """Whether MPI here is that of another process."""
    return bool(_forked)


@cache
def watch() -> None:
    """From now on, children that are forked are told what they are."""
    os.register_at_fork(after_in_child=in_child)


def in_child() -> None:
    from collectives.engine import ENGINE
    from collectives.ranks import exits

    pid = os.getpid()
    why = f"process {pid} was forked from {os.getppid()}, a rank, which alone may use this communicator; {FORK}"
    ENGINE.reset(exits.abandon(), why)
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        _forked.append(pid)
        disarm(ctypes.cast(ctypes.CDLL(mpi.__file__).MPI_Finalize, ctypes.c_void_p).value or 0)


def disarm(function: int) -> None:
    """Let a function of C that takes nothing return 0 at once, in this process alone; as it was, where that fails."""
    code, libc = RETURN_0.get(platform.machine(), b""), ctypes.CDLL(None)
    first = function // mmap.PAGESIZE * mmap.PAGESIZE
    pages = ctypes.c_void_p(first), ctypes.c_size_t(function + len(code) - first)
    if code and not libc.mprotect(*pages, WRITE_TOO):
        ctypes.memmove(function, code, len(code))
        libc.mprotect(*pages, READ_EXECUTE)
