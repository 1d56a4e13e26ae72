"""One rank's end of a communicator, as the executor sees it: MPI's functions and handles, the node's board, FIFOs."""

import ctypes
import os
from array import array
from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any, TypeVar

from collectives.errors import UnsupportedError
from collectives.flight.records import Record
from collectives.layout import LANE_BITS, SLOT_BITS
from collectives.native import layout as st
from collectives.native.library import library
from collectives.native.storage import Memory
from collectives.native.window import SharedWindow
from collectives.ranks.peers import Peers

Shared = TypeVar("Shared", Record, SharedWindow)
FIFO_BYTES = 8 << 20  # at most, of one rank
PR_SET_PTRACER = 0x59616D61
AHEAD = 2  # pieces that a send may be ahead of its round's receive
# Lanes and slots with a FIFO of their own, depth and payload, for nodes of up to so many ranks.
FIFO_SHAPES = (
    (4, (2, 4, 8, 1 << 15)),
    (8, (2, 4, 4, 1 << 15)),
    (16, (2, 2, 4, 1 << 15)),
    (32, (1, 2, 4, 1 << 15)),
    (64, (1, 1, 4, 1 << 15)),
)
ONLY_LINK = (2, 8)  # lanes and slots where there is no other link


@cache
def mpi_functions() -> tuple[int, int, int]:
    """Addresses of MPI_Isend, MPI_Irecv and MPI_Test in the library that mpi4py uses."""
    from mpi4py import MPI

    library = ctypes.CDLL(MPI.__file__)
    names = ("MPI_Isend", "MPI_Irecv", "MPI_Test")
    return tuple(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names)  # type: ignore[return-value]


class Endpoint:
    """Memory that all plans of a communicator share, whose ranks are `comm`; those of this node are `node`."""

    def __init__(self, comm: Peers, node: Peers, spin: int):
        self.comm, self.node = comm, node
        self.lanes, self.slots, self.depth, self.payload = fifo_shape(node.size, comm.mpi is not None)
        n_fifos = node.size * self.lanes * self.slots
        fifo_words = 2 * n_fifos * st.FIFO_WORDS
        self.memory = Memory(8 * (st.COMM_HEADER + fifo_words + 2 * node.size))
        self.address = self.memory.address
        self.words = w = self.memory.words(0, self.memory.n_bytes // 8)
        if comm.mpi is not None:
            self._know_mpi(comm.mpi)
        w[st.SPIN], w[st.COMPARED_AT] = spin, st.COMM_HEADER + fifo_words
        w[st.PIDS_AT] = st.COMM_HEADER + fifo_words + node.size
        w[st.NODE_SIZE], w[st.NODE_RANK] = 1, 0
        w[st.FIFOS_AT], w[st.FIFO_LANES], w[st.FIFO_SLOTS] = st.COMM_HEADER, self.lanes, self.slots
        self.arenas, self._growing = [Memory(1 << 16)], Lock()
        w[st.ARENA] = self.arenas[-1].address
        self.window: SharedWindow | None = None
        self.kernels = False  # whether node kernels have the memory that they need, and may use it
        self.record: Record | None = None  # the node's board
        self.pids, self.reads_peers = [pid for (pid,) in node.words(os.getpid())], False
        for i, pid in enumerate(self.pids):
            w[w[st.PIDS_AT] + i] = pid
        if comm.size > 1:
            self._share()

    def _know_mpi(self, comm: Any) -> None:
        """What compiled code needs for sending by MPI over an mpi4py communicator; all zeros where there is none."""
        from mpi4py import MPI

        w = self.words
        w[st.MPI_ISEND], w[st.MPI_IRECV], w[st.MPI_TEST] = mpi_functions()
        w[st.MPI_COMM], w[st.MPI_BYTE] = MPI._handleof(comm), MPI._handleof(MPI.BYTE)
        w[st.STATUS_IGNORE] = status_ignore()
        largest_tag = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767  # known of the world alone
        w[st.TAG_MASK] = (1 << largest_tag.bit_length() - 1 - LANE_BITS - SLOT_BITS) - 1

    def _share(self) -> None:
        """The node's board and FIFOs; without room for FIFOs the board alone, without room for that nothing."""
        self.record = self._or_none(lambda: Record.create(self.node, self.comm))
        if self.record is None:
            self.lanes = 0
            return
        w, me, size = self.words, self.node.rank, self.node.size
        w[st.NODE_SIZE], w[st.NODE_RANK], w[st.BOARD] = size, me, self.record.boards
        w[st.GATE_LIMIT] = st.WINDOW
        kernels = st.KERNEL_BYTES * size
        fifo = fifo_bytes(self.depth, self.payload)
        pairs = size * size * self.lanes * self.slots
        if self.lanes and size > 1:
            self.window = self._or_none(lambda: SharedWindow.create(self.node, kernels + pairs * fifo))
        if self.window is None:
            self.lanes = 0
            return
        w[st.KERNELS] = self.window.address
        self.kernels = os.environ.get("TREERING_KERNELS") != "off"  # which leaves everything to schedules
        self.reads_peers = may_read_peers(self.node, self.pids)
        per_peer = self.lanes * self.slots

        def memory(sender: int, receiver: int, channel: int) -> int:
            assert self.window is not None
            return self.window.address + kernels + ((sender * size + receiver) * per_peer + channel) * fifo

        for peer in range(size):
            for channel in range(per_peer):
                for out, ends in enumerate(((peer, me), (me, peer))):
                    at = st.COMM_HEADER + (2 * (peer * per_peer + channel) + out) * st.FIFO_WORDS
                    w[at + st.FIFO_MEMORY] = memory(*ends, channel)
                    w[at + st.DEPTH], w[at + st.PAYLOAD], w[at + st.AHEAD] = self.depth, self.payload, AHEAD

    def _or_none(self, make: Callable[[], Shared]) -> Shared | None:
        """Memory that the node shares, or None where some rank cannot have it and messages can go by MPI."""
        try:
            return make()
        except UnsupportedError:
            if self.comm.mpi is None:
                raise
            return None

    @property
    def has_board(self) -> bool:
        return self.record is not None

    def reserve(self, n_bytes: int) -> None:
        """Room for the scratch and slots of a plan; plans of a communicator run one at a time, and share it.

        Earlier, smaller rooms stay: the plan that runs now was started in one of them.
        """
        with self._growing:
            if n_bytes > self.arenas[-1].n_bytes:
                self.arenas.append(Memory(max(n_bytes, 2 * self.arenas[-1].n_bytes)))
                self.words[st.ARENA] = self.arenas[-1].address

    def news(self, rank: int) -> "ctypes.Array[ctypes.c_int64]":
        """A node rank's line of news on the board."""
        assert self.record is not None
        return self.record.board(rank)

    def is_first_to_leave(self) -> bool:
        """Whether no other rank of the node has asked this before; always true where the node shares no memory."""
        return self.record is None or library().leave(self.record.boards) == 0

    def entry(self, rank: int, seq: int) -> list[int]:
        """What a node rank published as its call number `seq`; empty if it has not, or long ago."""
        assert self.record is not None
        words = list(self.record.entry(rank, seq))
        return words[1 : 1 + st.FINGERPRINT_WORDS] + [words[st.CALLED_AT]] if words[0] == seq else []

    def arrival(self, rank: int, seq: int) -> int:
        """When a node rank came to its call number `seq`, in nanoseconds; 0 if it has not said so, or long ago."""
        assert self.record is not None
        words = self.record.entry(rank, seq)
        return words[st.CAME_AT] if words[0] == seq else 0


def may_read_peers(node: Peers, pids: list[int]) -> bool:
    """Whether all ranks of the node can copy from each other's memory. Collective.

    Where Yama guards processes, reading is allowed to our launcher and what it has started, and to nobody else.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0)
    secret = array("q", [os.getpid()])
    places = node.words(secret.buffer_info()[0])
    return node.agree(all(peek(libc, pid, at) == pid for pid, (at,) in zip(pids, places, strict=True)))


def peek(libc: ctypes.CDLL, pid: int, address: int) -> int:
    """A word of another process's memory, or -1."""
    found = ctypes.c_int64(-1)
    vectors = (ctypes.c_int64 * 4)(ctypes.addressof(found), 8, address, 8)
    at = ctypes.addressof(vectors)
    done = libc.process_vm_readv(pid, ctypes.c_void_p(at), 1, ctypes.c_void_p(at + 16), 1, 0)
    return found.value if done == 8 else -1


def status_ignore() -> int:
    """MPI_STATUS_IGNORE, which is not the same in all libraries."""
    from mpi4py import MPI

    return 0 if "Open MPI" in MPI.Get_library_version() else 1


def fifo_bytes(depth: int, payload: int) -> int:
    return 64 + depth * (64 + payload)


def fifo_shape(node_size: int, mpi: bool) -> tuple[int, int, int, int]:
    """Lanes, slots, depth and payload of the FIFOs on a node of so many ranks; no lanes where there are too many.

    Without MPI there must be one for whatever is sent. Memory is taken only for those that are used.
    """
    if os.environ.get("TREERING_LINKS") == "mpi":
        return (0, 1, 2, 64)
    lanes, slots, depth, payload = next((shape for ranks, shape in FIFO_SHAPES if node_size <= ranks), (0, 1, 2, 64))
    return (lanes, slots, depth, payload) if mpi or not lanes else (*ONLY_LINK, depth, payload)
