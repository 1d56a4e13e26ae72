"""The flight recorder's memory: the node's board in a small file, which is still there when its processes are not.

A file belongs to one communicator and one node, and holds what native/board.py writes anyway. It lies in memory
(/dev/shm or the user's run-time folder: a write must never wait for a disk), in a folder that only its user can enter.
It goes when the communicator is closed or its ranks leave in order. What ended runs have left, the next start removes,
unless TREERING_RUN_DIR names the folder. Where there can be no file the board is memory without a name, and only the
job itself can report.
"""

import ctypes
import mmap
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

from collectives.folders import private
from collectives.native import layout as st
from collectives.native.window import SharedWindow
from collectives.ranks.peers import Peers
from collectives.ranks.store_peers import born, this_host

FOLDER = "TREERING_RUN_DIR"
SUFFIX = ".record"
MARK = 0x7472656572696E67 ^ st.BOARD_BYTES << 3  # "treering", and a layout of this version's
(MAGIC, NODE_SIZE, COMM_SIZE, HOST, WALL_NS, MONOTONIC_NS, NUMBER) = range(7)  # a line before the boards
HEADER_BYTES = 64
ATTEMPTS = 3  # to make a file in a folder, which whoever leaves last removes
UNFINISHED_SECONDS = 60.0  # after which a file without a mark is nobody's


class Record:
    """One communicator's board on this node, mapped."""

    def __init__(self, memory: mmap.mmap, node: Peers, path: Path | None = None, creator: bool = False):
        self.memory, self.node_rank, self.path, self.creator = memory, node.rank, path, creator
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    @classmethod
    def create(cls, node: Peers, comm: Peers) -> "Record":
        """Collective over the ranks of the node. UnsupportedError where they cannot share memory."""
        n_bytes = HEADER_BYTES + st.BOARD_BYTES * node.size
        path = new_file(n_bytes) if node.rank == 0 else None
        said = node.exchange(os.fsencode(path) if path else b"")[0]
        memory = open_file(Path(os.fsdecode(said)), n_bytes) if said else None
        if node.agree(memory is not None):
            assert memory is not None
            made = cls(memory, node, Path(os.fsdecode(said)), node.rank == 0)
        else:
            if path is not None:
                path.unlink(missing_ok=True)
            made = cls(SharedWindow.create(node, n_bytes).memory, node)
        made._introduce(comm, node.size)
        return made

    def _introduce(self, comm: Peers, node_size: int) -> None:
        mine = self.board(self.node_rank)
        mine[st.PROCESS], mine[st.BORN], mine[st.RANK] = os.getpid(), born(os.getpid()), comm.rank
        if self.node_rank == 0:
            head = (ctypes.c_int64 * 8).from_address(self.address)
            head[NODE_SIZE], head[COMM_SIZE], head[HOST] = node_size, comm.size, host_mark()
            head[WALL_NS], head[MONOTONIC_NS] = time.time_ns(), time.monotonic_ns()
            head[NUMBER] = secrets.randbits(32)
            head[MAGIC] = MARK

    @property
    def boards(self) -> int:
        """Where the ranks' boards begin."""
        return self.address + HEADER_BYTES

    def board(self, node_rank: int) -> "ctypes.Array[ctypes.c_int64]":
        """A rank's lines before its ring of calls."""
        return (ctypes.c_int64 * (8 * st.BOARD_LINES)).from_address(self.boards + node_rank * st.BOARD_BYTES)

    def entry(self, node_rank: int, seq: int) -> "ctypes.Array[ctypes.c_int64]":
        """Where a rank's call number `seq` is, or was before a later one took its place."""
        line = st.BOARD_LINES + seq % st.HISTORY
        return (ctypes.c_int64 * 8).from_address(self.boards + node_rank * st.BOARD_BYTES + 64 * line)

    def snapshot(self) -> "Snapshot | None":
        return Snapshot.of(ctypes.string_at(self.address, len(self.memory)))

    def forget(self) -> None:
        """Nobody will ask for it: the communicator was closed by all, or all have left in order."""
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()
                if not os.environ.get(FOLDER):
                    self.path.parent.rmdir()  # unless it holds others' records


class Snapshot:
    """What a record's file, or memory, held at one moment."""

    def __init__(self, head: list[int], words: list[int]):
        self.head, self.words = head, words
        self.node_size, self.comm_size, self.number = head[NODE_SIZE], head[COMM_SIZE], head[NUMBER]

    @classmethod
    def of(cls, content: bytes) -> "Snapshot | None":
        """None where it is no record of this version, or not yet one."""
        words = list(memoryview(content[: len(content) // 8 * 8]).cast("q"))
        size = words[NODE_SIZE] if len(words) > 8 else 0
        if size < 1 or words[MAGIC] != MARK or len(content) != HEADER_BYTES + size * st.BOARD_BYTES:
            return None
        return cls(words[:8], words[8:])

    def board(self, node_rank: int) -> list[int]:
        at = node_rank * st.BOARD_BYTES // 8
        return self.words[at : at + 8 * st.BOARD_LINES]

    def entry(self, node_rank: int, seq: int) -> list[int]:
        """The words of a rank's call, or [] where it has not made it, or long ago."""
        at = node_rank * st.BOARD_BYTES // 8 + 8 * (st.BOARD_LINES + seq % st.HISTORY)
        words = self.words[at : at + 8]
        return words if words[0] == seq and seq > 0 else []

    @cached_property
    def processes(self) -> list[tuple[int, int]]:
        """Who its ranks are: number, and when born; zeros for one that has not come."""
        boards = (self.board(i) for i in range(self.node_size))
        return [(board[st.PROCESS], board[st.BORN]) for board in boards]

    @property
    def alive(self) -> bool:
        """Whether one of its processes lives; True where that cannot be seen from here."""
        return self.head[HOST] != host_mark() or any(map(lives, self.processes))


def lives(process: tuple[int, int]) -> bool:
    pid, birth = process
    return pid > 0 and born(pid) == birth


def host_mark() -> int:
    """This boot of this machine and its space of process numbers, as a word."""
    return int.from_bytes(blake2b(this_host().encode(), digest_size=6).digest(), "little")


# ---------------------------------------------------------------- files
def folders() -> list[Path]:
    """Where records may lie, the preferred one first."""
    if named := os.environ.get(FOLDER):
        return [Path(named)]
    own = os.environ.get("XDG_RUNTIME_DIR")
    return [*([Path(own, "treering")] if own else []), Path("/dev/shm", f"treering-{os.geteuid()}")]


def new_file(n_bytes: int) -> Path | None:
    """An empty record with its room claimed, or None where there can be none. Removes what ended runs have left."""
    for folder in (folder for folder in folders() for _ in range(ATTEMPTS)):
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
        if not private(folder):
            continue
        if not os.environ.get(FOLDER):
            clean(folder)
        path = folder / f"{os.getpid()}-{secrets.token_hex(8)}{SUFFIX}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            continue
        try:
            os.posix_fallocate(fd, 0, n_bytes)  # or a later write would be a bus error
            return path
        except OSError:
            path.unlink(missing_ok=True)
        finally:
            os.close(fd)
    return None


def open_file(path: Path, n_bytes: int) -> mmap.mmap | None:
    """A record that another rank of this user's has made, mapped; None where it is not that."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            mine = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_size == n_bytes
            return mmap.mmap(fd, n_bytes) if mine else None
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return None


def found() -> Iterator[tuple[Path, Snapshot | None]]:
    """This user's records, those of ended runs too; None where a file is not one, or not yet."""
    for folder in folders():
        if private(folder):
            yield from records_in(folder)


def records_in(folder: Path) -> Iterator[tuple[Path, Snapshot | None]]:
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        with suppress(OSError):  # removed meanwhile
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                yield path, Snapshot.of(file.read())


def clean(folder: Path) -> list[Path]:
    """Remove the records of runs that have ended; gives them."""
    gone = []
    for path, snapshot in records_in(folder):
        with suppress(OSError):
            unfinished = snapshot is None and time.time() - path.stat().st_mtime > UNFINISHED_SECONDS
            if unfinished or (snapshot is not None and not snapshot.alive):
                path.unlink()
                gone.append(path)
    return gone
