"""A ring allreduce written by hand in Numba, over MPI and over FIFOs: what the executor's rings are measured against.

It does nothing else: no deadlines, no agreement, one lane, float32 sums, chunks that are multiples of a line.
"""

from typing import Any

from mpi4py import MPI
from numba import njit

from collectives.native.endpoint import mpi_functions, status_ignore
from collectives.native.library import entry, kernel
from collectives.native.memory import (
    call_kernel,
    call_test,
    call_transfer,
    copy,
    inlined,
    load_acquire,
    native,
    pause,
    sched_yield,
    store_release,
    words,
)
from collectives.native.storage import Memory
from collectives.native.window import SharedWindow
from collectives.ranks.mpi_peers import MpiPeers

(DATA, BYTES, RANK, RANKS, PIECE, STAGING, ISEND, IRECV, TEST, COMM, BYTE, IGNORE, KERNEL, REQUESTS, FLAG,
 TO, FROM, SENT, GOT, DEPTH, OPERANDS) = range(21)  # fmt: skip
LINE, SPIN, LAG = 64, 10, 2


@njit(**inlined)
def cut(n_bytes, i, p):
    """Where chunk i of p begins."""
    return n_bytes if i == p else min(n_bytes, n_bytes * i // p // LINE * LINE)


@njit(**inlined)
def add(at, target, other, n_bytes):
    A = words(at)
    A[OPERANDS], A[OPERANDS + 1] = target, other
    call_kernel(A[KERNEL], target, at + 8 * OPERANDS, 2, n_bytes // 4, 0)


@njit(**inlined)
def finished(at, request):
    """Wait for an MPI request, testing as the executor does."""
    A = words(at)
    idle = 0
    while True:
        call_test(A[TEST], request, at + 8 * FLAG, A[IGNORE])
        if A[FLAG] & 0xFFFFFFFF:
            return
        idle += 1
        if idle > SPIN:
            sched_yield()
        else:
            pause()


@njit("void(int64)", **native)
def by_mpi(at):
    """Two pieces in flight each way."""
    A = words(at)
    data, n_bytes, me, p, size, staging, requests = (
        A[DATA],
        A[BYTES],
        A[RANK],
        A[RANKS],
        A[PIECE],
        A[STAGING],
        A[REQUESTS],
    )
    after, before = (me + 1) % p, (me + p - 1) % p
    for t in range(2 * p - 2):
        reducing = t < p - 1
        out = (me - 1 - t + 2 * p) % p if reducing else (me - (t - p + 1) + p) % p
        come = (out - 1 + p) % p
        lo, hi = cut(n_bytes, out, p), cut(n_bytes, out + 1, p)
        at_lo, at_hi = cut(n_bytes, come, p), cut(n_bytes, come + 1, p)
        sends, receives = (hi - lo + size - 1) // size, (at_hi - at_lo + size - 1) // size
        for k in range(-2, max(sends, receives)):
            if 0 <= k < receives:
                finished(at, requests + 8 * (k & 1))
                if reducing:
                    add(at, data + at_lo + k * size, staging + (k & 1) * size, min(size, at_hi - at_lo - k * size))
            if k + 2 < receives:
                where = staging + (k & 1) * size if reducing else data + at_lo + (k + 2) * size
                n = min(size, at_hi - at_lo - (k + 2) * size)
                call_transfer(A[IRECV], where, n, A[BYTE], before, 7, A[COMM], requests + 8 * (k & 1))
            if 0 <= k < sends:
                finished(at, requests + 16 + 8 * (k & 1))
            if k + 2 < sends:
                n = min(size, hi - lo - (k + 2) * size)
                call_transfer(
                    A[ISEND], data + lo + (k + 2) * size, n, A[BYTE], after, 7, A[COMM], requests + 16 + 8 * (k & 1)
                )


@njit(**inlined)
def wait_for(address, value):
    idle = 0
    while load_acquire(address) < value:
        idle += 1
        if idle > SPIN:
            sched_yield()
        else:
            pause()


@njit("void(int64)", **native)
def by_fifo(at):
    """Pieces through a FIFO in shared memory, the sender at most LAG of them ahead of its receives."""
    A = words(at)
    data, n_bytes, me, p, size, to, source = A[DATA], A[BYTES], A[RANK], A[RANKS], A[PIECE], A[TO], A[FROM]
    sent, got, depth = A[SENT], A[GOT], A[DEPTH]
    for t in range(2 * p - 2):
        reducing = t < p - 1
        out = (me - 1 - t + 2 * p) % p if reducing else (me - (t - p + 1) + p) % p
        come = (out - 1 + p) % p
        lo, hi = cut(n_bytes, out, p), cut(n_bytes, out + 1, p)
        at_lo, at_hi = cut(n_bytes, come, p), cut(n_bytes, come + 1, p)
        sends, receives = (hi - lo + size - 1) // size, (at_hi - at_lo + size - 1) // size
        for k in range(max(sends, receives + LAG)):
            if k < sends:
                wait_for(to, sent + 1 - depth)
                n = min(size, hi - lo - k * size)
                slot = to + LINE + (sent & (depth - 1)) * (LINE + size)
                copy(slot + LINE, data + lo + k * size, n)
                sent += 1
                store_release(slot, sent)
            j = k - LAG
            if 0 <= j < receives:
                slot = source + LINE + (got & (depth - 1)) * (LINE + size)
                n = min(size, at_hi - at_lo - j * size)
                wait_for(slot, got + 1)
                if reducing:
                    add(at, data + at_lo + j * size, slot + LINE, n)
                else:
                    copy(data + at_lo + j * size, slot + LINE, n)
                got += 1
                store_release(source, got)
    A[SENT], A[GOT] = sent, got


class Ring:
    """One rank's hand-written rings over an mpi4py communicator whose ranks share a node: float32 sums, in place."""

    def __init__(self, comm: Any, piece: int, depth: int = 8):
        self.comm, self.requests, self.staging = comm, Memory(64), Memory(2 * piece)
        self.memory = Memory(8 * (OPERANDS + 8))
        self.at = self.memory.address
        self.words = w = self.memory.words(0, OPERANDS + 8)
        fifo = LINE + depth * (LINE + piece)
        self.window = SharedWindow.create(MpiPeers(comm, 60), comm.size * fifo)
        w[RANK], w[RANKS], w[PIECE], w[DEPTH] = comm.rank, comm.size, piece, depth
        w[ISEND], w[IRECV], w[TEST] = mpi_functions()
        w[COMM], w[BYTE], w[IGNORE] = MPI._handleof(comm), MPI._handleof(MPI.BYTE), status_ignore()
        w[KERNEL], w[REQUESTS], w[STAGING] = kernel("float32", "sum"), self.requests.address, self.staging.address
        w[TO] = self.window.address + comm.rank * fifo
        w[FROM] = self.window.address + (comm.rank - 1) % comm.size * fifo
        self._by_mpi, self._by_fifo = entry(by_mpi), entry(by_fifo)

    def by_mpi(self, address: int, n_bytes: int) -> None:
        self.words[DATA], self.words[BYTES] = address, n_bytes
        self._by_mpi(self.at)

    def by_fifo(self, address: int, n_bytes: int) -> None:
        self.words[DATA], self.words[BYTES] = address, n_bytes
        self._by_fifo(self.at)
