"""Memory that all ranks of a node map: a file in /dev/shm, unlinked as soon as everyone has it.

Its room is claimed before anyone touches it, so that a small /dev/shm is an answer here and not a bus error later.
"""

import ctypes
import mmap
import os
import secrets
from pathlib import Path
from typing import Any

FOLDER = Path("/dev/shm")
COOKIE = 16  # bytes at the start, by which a rank knows that it has mapped the file that was meant


class SharedWindow:
    """`n_bytes` of zeroed memory shared by the ranks of `node`; None from `create` if not all of them can have it."""

    def __init__(self, memory: mmap.mmap):
        self.memory = memory
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + 64

    @classmethod
    def create(cls, node: Any, n_bytes: int) -> "SharedWindow | None":
        """Collective over the mpi4py communicator `node`."""
        from mpi4py import MPI

        note, window = bytearray(COOKIE + 64), None
        if node.rank == 0:
            window = cls._make(note, n_bytes + 64)
        node.Bcast([note, MPI.BYTE], root=0)
        name = bytes(note[COOKIE:]).rstrip(b"\0").decode()
        if node.rank > 0 and name:
            window = cls._map(FOLDER / name, bytes(note[:COOKIE]), n_bytes + 64)
        mine, all_of_them = bytearray([window is not None]), bytearray(1)
        node.Allreduce([mine, MPI.UNSIGNED_CHAR], [all_of_them, MPI.UNSIGNED_CHAR], op=MPI.MIN)
        if node.rank == 0 and name:
            (FOLDER / name).unlink(missing_ok=True)
        return window if all_of_them[0] else None

    @classmethod
    def _make(cls, note: bytearray, n_bytes: int) -> "SharedWindow | None":
        name, cookie = f"treering-{os.getuid()}-{os.getpid()}-{secrets.token_hex(6)}", secrets.token_bytes(COOKIE)
        try:
            fd = os.open(FOLDER / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return None
        try:
            os.posix_fallocate(fd, 0, n_bytes)
            memory = mmap.mmap(fd, n_bytes)
        except OSError:
            (FOLDER / name).unlink(missing_ok=True)
            return None
        finally:
            os.close(fd)
        memory[:COOKIE] = cookie
        note[:COOKIE], note[COOKIE : COOKIE + len(name)] = cookie, name.encode()
        return cls(memory)

    @classmethod
    def _map(cls, path: Path, cookie: bytes, n_bytes: int) -> "SharedWindow | None":
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            if os.fstat(fd).st_size != n_bytes or os.fstat(fd).st_uid != os.getuid():
                return None
            memory = mmap.mmap(fd, n_bytes)
        except OSError:
            return None
        finally:
            os.close(fd)
        return cls(memory) if memory[:COOKIE] == cookie else None
