"""One rank's end of a communicator, as the executor sees it: MPI's functions and handles, the node's board, FIFOs."""

import ctypes
import os
from functools import cache
from typing import Any

from collectives.native import layout as st
from collectives.native.storage import Memory
from collectives.native.window import SharedWindow

SPIN = 10  # pauses before a wait yields: good with a core per rank and with more ranks than cores alike
FIFO_BYTES = 8 << 20  # at most, of one rank
AHEAD = 2  # pieces that a send may be ahead of its round's receive
# Lanes and slots with a FIFO of their own, depth and payload, for nodes of up to so many ranks.
FIFO_SHAPES = (
    (4, (2, 4, 8, 1 << 15)),
    (8, (2, 4, 4, 1 << 15)),
    (16, (2, 2, 4, 1 << 15)),
    (32, (1, 2, 4, 1 << 15)),
    (64, (1, 1, 4, 1 << 15)),
)


@cache
def mpi_functions() -> tuple[int, int, int]:
    """Addresses of MPI_Isend, MPI_Irecv and MPI_Test in the library that mpi4py uses."""
    from mpi4py import MPI

    library = ctypes.CDLL(MPI.__file__)
    names = ("MPI_Isend", "MPI_Irecv", "MPI_Test")
    return tuple(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names)  # type: ignore[return-value]


class Endpoint:
    """Memory that all plans of a communicator share. `comm` and `node` are mpi4py communicators of our own."""

    def __init__(self, comm: Any, node: Any, spin: int = SPIN):
        from mpi4py import MPI

        self.comm, self.node = comm, node
        self.lanes, self.slots, self.depth, self.payload = fifo_shape(node.size)
        n_fifos = node.size * self.lanes * self.slots
        self.memory = Memory(8 * (st.COMM_HEADER + 2 * n_fifos * st.FIFO_WORDS + node.size))
        self.address = self.memory.address
        self.words = w = self.memory.words(0, self.memory.n_bytes // 8)
        w[st.MPI_ISEND], w[st.MPI_IRECV], w[st.MPI_TEST] = mpi_functions()
        w[st.MPI_COMM], w[st.MPI_BYTE] = MPI._handleof(comm), MPI._handleof(MPI.BYTE)
        w[st.STATUS_IGNORE] = status_ignore()
        w[st.SPIN], w[st.COMPARED_AT] = spin, st.COMM_HEADER + 2 * n_fifos * st.FIFO_WORDS
        w[st.NODE_SIZE], w[st.NODE_RANK] = 1, 0
        w[st.FIFOS_AT], w[st.FIFO_LANES], w[st.FIFO_SLOTS] = st.COMM_HEADER, self.lanes, self.slots
        self.arena = Memory(1 << 16)
        w[st.ARENA] = self.arena.address
        self.window: SharedWindow | None = None
        if node.size > 1:
            self._share()

    def _share(self) -> None:
        """The node's board and FIFOs; without room for FIFOs the board alone, without room for that nothing."""
        board = st.BOARD_BYTES * self.node.size
        fifo = fifo_bytes(self.depth, self.payload)
        pairs = self.node.size * self.node.size * self.lanes * self.slots
        if self.lanes:
            self.window = SharedWindow.create(self.node, board + pairs * fifo)
        if self.window is None:
            self.lanes = 0
            self.window = SharedWindow.create(self.node, board)
        if self.window is None:
            return
        w, me, size = self.words, self.node.rank, self.node.size
        w[st.NODE_SIZE], w[st.NODE_RANK], w[st.BOARD] = size, me, self.window.address
        w[st.GATE_LIMIT] = st.WINDOW
        per_peer = self.lanes * self.slots

        def memory(sender: int, receiver: int, channel: int) -> int:
            assert self.window is not None
            return self.window.address + board + ((sender * size + receiver) * per_peer + channel) * fifo

        for peer in range(size):
            for channel in range(per_peer):
                for out, ends in enumerate(((peer, me), (me, peer))):
                    at = st.COMM_HEADER + (2 * (peer * per_peer + channel) + out) * st.FIFO_WORDS
                    w[at + st.FIFO_MEMORY] = memory(*ends, channel)
                    w[at + st.DEPTH], w[at + st.PAYLOAD], w[at + st.AHEAD] = self.depth, self.payload, AHEAD

    @property
    def has_board(self) -> bool:
        return self.window is not None

    def reserve(self, n_bytes: int) -> None:
        """Room for the scratch and slots of a plan; plans of a communicator run one at a time, and share it."""
        if n_bytes > self.arena.n_bytes:
            self.arena = Memory(n_bytes)
            self.words[st.ARENA] = self.arena.address

    def news(self, rank: int) -> "ctypes.Array[ctypes.c_int64]":
        """A node rank's line of news on the board."""
        assert self.window is not None
        return (ctypes.c_int64 * 8).from_address(self.window.address + rank * st.BOARD_BYTES)

    def entry(self, rank: int, seq: int) -> list[int]:
        """What a node rank published as its call number `seq`; empty if it has not, or long ago."""
        assert self.window is not None
        where = self.window.address + rank * st.BOARD_BYTES + 64 * (1 + seq % st.HISTORY)
        words = list((ctypes.c_int64 * 8).from_address(where))
        return words[1 : 1 + st.FINGERPRINT_WORDS] if words[0] == seq else []


def status_ignore() -> int:
    """MPI_STATUS_IGNORE, which is not the same in all libraries."""
    from mpi4py import MPI

    return 0 if "Open MPI" in MPI.Get_library_version() else 1


def fifo_bytes(depth: int, payload: int) -> int:
    return 64 + depth * (64 + payload)


def fifo_shape(node_size: int) -> tuple[int, int, int, int]:
    """Lanes, slots, depth and payload of the FIFOs on a node of so many ranks; no lanes where there are too many."""
    if os.environ.get("TREERING_LINKS") == "mpi":
        return (0, 1, 2, 64)
    return next((shape for ranks, shape in FIFO_SHAPES if node_size <= ranks), (0, 1, 2, 64))
