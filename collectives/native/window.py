"""Memory that all ranks of a node map. It has no name: nothing is left behind, whoever dies and whenever.

The first rank makes it and hands its descriptor to the others. Pages come into being when they are first touched, near
the rank that touches them.
"""

import ctypes
import errno
import fcntl
import mmap
import os
from pathlib import Path

from collectives.native.descriptor import hand_out
from collectives.ranks.peers import Peers


class SharedWindow:
    """`n_bytes` of zeroed memory shared by the ranks of a node."""

    def __init__(self, memory: mmap.mmap):
        self.memory = memory
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    @classmethod
    def create(cls, node: Peers, n_bytes: int) -> "SharedWindow":
        """Collective. UnsupportedError on all ranks where one of them cannot have the memory, and why."""
        fd = -1
        try:
            with node.together("make shared memory"):
                if node.rank == 0:
                    fd = allocate(n_bytes)
            fd = hand_out(node, fd)
            with node.together("map shared memory"):
                memory = mmap.mmap(fd, n_bytes)
        finally:
            if fd >= 0:
                os.close(fd)
        return cls(memory)


def allocate(n_bytes: int) -> int:
    """A descriptor of so much memory, whose size nobody can change. OSError where there is less."""
    free = available()
    if n_bytes > free:
        raise OSError(errno.ENOMEM, f"{n_bytes} bytes are asked for, and {free} are available")
    fd = os.memfd_create("treering", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, n_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(fd)
        raise
    return fd


def available() -> int:
    """Bytes of memory that can be had without swapping, as the kernel estimates."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return next(int(kibibytes) << 10 for name, kibibytes, *_ in lines if name == "MemAvailable:")
