"""Node kernels: an allreduce of ranks that share memory, as one resumable step.

Each does what its schedule twin does (algorithms/direct.py), and builds the same tree: everything is folded once, in
rank order. A rank gives pieces (GIVEN), the owner of a chunk folds what all have given (FOLDED), and everyone takes
the result. Counters only grow, over all calls alike, so kernels of different kinds may follow each other. Why nothing
is written over too early:

    between calls   staging has two halves, used in turn. Who ends call s has seen all others give in it, so they have
                    ended call s - 1, and nobody reads the half of call s - 1 when call s + 1 begins
    within a call   a rank gives piece k only when it has taken piece k - 2 LAG - 1. So who sees piece k of all others
                    knows that they have taken all before k - 2 LAG, and who has taken piece k that all have folded it

A kernel moves as far as it can and returns how much that was: 0 where it must wait.
"""

from typing import Any

from numba import cfunc, njit, types

from collectives import layout as at
from collectives.native.layout import (
    ADDRESSES,
    ARRIVED,
    BYTES,
    COMM,
    DATA_AT,
    ERROR_DETAIL,
    FINISHED,
    FOLDED,
    GIVEN,
    HALF_BYTES,
    INPUT_AT,
    ISSUED,
    ITEMSIZE,
    KERNEL,
    KERNEL_BYTES,
    KERNEL_CALLS,
    KERNEL_LINES,
    KERNEL_PIECES,
    KERNELS,
    LAG,
    LOCAL,
    LOCAL_BYTES,
    MPI_FAILED,
    NODE_RANK,
    NODE_SIZE,
    OPERANDS_AT,
    PART,
    PIDS_AT,
    PIECES,
    REMOTE,
    REMOTE_BYTES,
    RING,
    STAGE_AT,
    TABLE,
    TAKEN,
    TICKET,
)
from collectives.native.memory import call_kernel, copy, inlined, load_acquire, store_release, words

SIGNATURE = "int64(int64,int64,int64)"  # state, row, step
_read: Any = types.ExternalFunction(
    "process_vm_readv", types.int64(types.int64, types.int64, types.uint64, types.int64, types.uint64, types.uint64)
)


@njit(**inlined)
def counter(state: int, rank: int, line: int) -> int:
    """Address of a rank's line."""
    return words(words(state)[COMM])[KERNELS] + rank * KERNEL_BYTES + 64 * line


@njit(**inlined)
def staging(state: int, step: int, rank: int) -> int:
    """A rank's half of staging in this call."""
    return counter(state, rank, KERNEL_LINES) + words(step)[STAGE_AT]


@njit(**inlined)
def begin(state: int, step: int, pieces: int) -> None:
    """Take the call's place in the counters, and its half of staging."""
    s, C = words(step), words(words(state)[COMM])
    s[TICKET], s[STAGE_AT] = C[KERNEL_PIECES], (C[KERNEL_CALLS] & 1) * HALF_BYTES
    C[KERNEL_PIECES] += pieces
    C[KERNEL_CALLS] += 1


@njit(**inlined)
def all_reached(state: int, line: int, value: int) -> int:
    """Whether every other rank's counter has come to `value`."""
    C = words(words(state)[COMM])
    for rank in range(C[NODE_SIZE]):
        if rank != C[NODE_RANK] and load_acquire(counter(state, rank, line)) < value:
            return 0
    return 1


@njit(**inlined)
def weights_at(state: int, row: int) -> int:
    """Where a row's weights lie."""
    table = words(state)[TABLE]
    return table + 8 * (words(table)[at.WEIGHTS] + words(row)[at.FIRST_TERM])


@njit(**inlined)
def fold(state: int, row: int, target: int, n_bytes: int) -> None:
    """Of the operands noted, one for each rank."""
    S = words(state)
    operands, ranks = state + 8 * S[OPERANDS_AT], words(S[COMM])[NODE_SIZE]
    call_kernel(S[KERNEL], target, operands, ranks, n_bytes // S[ITEMSIZE], weights_at(state, row))


@cfunc(SIGNATURE, cache=True)
def one_shot(state: int, row: int, step: int) -> int:
    """Everyone gives everything, and folds everything."""
    S, s = words(state), words(step)
    C, n = words(S[COMM]), s[BYTES]
    me = C[NODE_RANK]
    if s[ISSUED] == 0:
        begin(state, step, 1)
        copy(staging(state, step, me), S[INPUT_AT], n)
        store_release(counter(state, me, GIVEN), s[TICKET] + 1)
        s[ISSUED] = 1
    if not all_reached(state, GIVEN, s[TICKET] + 1):
        return 0
    operands = words(state + 8 * S[OPERANDS_AT])
    for rank in range(C[NODE_SIZE]):
        operands[rank] = S[INPUT_AT] if rank == me else staging(state, step, rank)
    fold(state, row, S[DATA_AT], n)
    s[FINISHED] = s[PIECES]
    return 1


# ---------------------------------------------------------------- chunks in pieces
@njit(**inlined)
def chunk_bytes(n: int, ranks: int) -> int:
    """Length of every rank's chunk but the last ones', a whole number of lines."""
    return ((n + ranks - 1) // ranks + 63) // 64 * 64


@njit(**inlined)
def piece_start(n: int, chunk: int, owner: int, k: int, size: int) -> int:
    return min(n, owner * chunk + k * size)


@njit(**inlined)
def piece_length(n: int, chunk: int, owner: int, k: int, size: int) -> int:
    end = min(n, (owner + 1) * chunk)
    return max(0, min(size, end - (owner * chunk + k * size)))


@cfunc(SIGNATURE, cache=True)
def two_shot(state: int, row: int, step: int) -> int:
    """Everyone gives each owner its chunk, and takes the results, through rings of pieces in staging."""
    S, s = words(state), words(step)
    C, n, size = words(S[COMM]), s[BYTES], words(row)[at.KERNEL_PIECE]
    me, ranks = C[NODE_RANK], C[NODE_SIZE]
    chunk = chunk_bytes(n, ranks)
    pieces = (chunk + size - 1) // size
    if s[ISSUED] == 0:
        begin(state, step, pieces)
    operands = words(state + 8 * S[OPERANDS_AT])
    results = RING * ranks * size  # where they begin in staging
    moved = 0
    while s[PART] < pieces:
        before = moved
        k = s[ISSUED]
        if k < pieces and k <= s[PART] + 2 * LAG:
            mine = staging(state, step, me) + k % RING * ranks * size
            for owner in range(ranks):
                if owner != me:
                    start = S[INPUT_AT] + piece_start(n, chunk, owner, k, size)
                    copy(mine + owner * size, start, piece_length(n, chunk, owner, k, size))
            store_release(counter(state, me, GIVEN), s[TICKET] + k + 1)
            s[ISSUED] = k + 1
            moved += 1
        j = s[ARRIVED]
        due = j < s[ISSUED] and (j + LAG <= s[ISSUED] or s[ISSUED] == pieces or before == moved)
        if due and all_reached(state, GIVEN, s[TICKET] + j + 1):
            start, length = piece_start(n, chunk, me, j, size), piece_length(n, chunk, me, j, size)
            for rank in range(ranks):
                given = staging(state, step, rank) + (j % RING * ranks + me) * size
                operands[rank] = S[INPUT_AT] + start if rank == me else given
            if length > 0:
                fold(state, row, S[DATA_AT] + start, length)
                copy(staging(state, step, me) + results + j % RING * size, S[DATA_AT] + start, length)
            store_release(counter(state, me, FOLDED), s[TICKET] + j + 1)
            s[ARRIVED] = j + 1
            moved += 1
        i = s[PART]
        if i < s[ARRIVED] and all_reached(state, FOLDED, s[TICKET] + i + 1):
            for owner in range(ranks):
                if owner != me:
                    start = S[DATA_AT] + piece_start(n, chunk, owner, i, size)
                    found = staging(state, step, owner) + results + i % RING * size
                    copy(start, found, piece_length(n, chunk, owner, i, size))
            s[PART] = i + 1
            moved += 1
        if before == moved:
            return moved
    s[FINISHED] = s[PIECES]
    return moved + 1


# ---------------------------------------------------------------- without staging: the kernel copies between processes
@njit(**inlined)
def read(state: int, rank: int, target: int, source: int, n_bytes: int) -> int:
    """Copy from another process's memory; 0, or what went wrong."""
    S = words(state)
    C = words(S[COMM])
    S[LOCAL], S[LOCAL_BYTES], S[REMOTE], S[REMOTE_BYTES] = target, n_bytes, source, n_bytes
    pid = words(S[COMM] + 8 * C[PIDS_AT])[rank]
    done = _read(pid, state + 8 * LOCAL, 1, state + 8 * REMOTE, 1, 0)
    return 0 if done == n_bytes else -MPI_FAILED


@cfunc(SIGNATURE, cache=True)
def single_copy(state: int, row: int, step: int) -> int:
    """Owners read what they fold, and everyone reads results, straight from each other's memory."""
    S, s = words(state), words(step)
    C, n, size = words(S[COMM]), s[BYTES], words(row)[at.KERNEL_PIECE]
    me, ranks = C[NODE_RANK], C[NODE_SIZE]
    chunk = chunk_bytes(n, ranks)
    pieces = (chunk + size - 1) // size
    if s[ISSUED] == 0:
        begin(state, step, pieces)
        places = words(counter(state, me, ADDRESSES))
        places[0], places[1] = S[INPUT_AT], S[DATA_AT]
        store_release(counter(state, me, GIVEN), s[TICKET] + pieces)
        s[ISSUED] = 1
    operands = words(state + 8 * S[OPERANDS_AT])
    moved = 0
    while s[PART] < pieces:
        before = moved
        j = s[ARRIVED]
        if j < pieces and all_reached(state, GIVEN, s[TICKET] + pieces):
            start, length = piece_start(n, chunk, me, j, size), piece_length(n, chunk, me, j, size)
            for rank in range(ranks if length > 0 else 0):
                operands[rank] = S[INPUT_AT] + start
                if rank != me:
                    operands[rank] = staging(state, step, me) + rank * size
                    theirs = words(counter(state, rank, ADDRESSES))[0] + start
                    if read(state, rank, operands[rank], theirs, length) < 0:
                        S[ERROR_DETAIL] = rank
                        return -MPI_FAILED
            if length > 0:
                fold(state, row, S[DATA_AT] + start, length)
            store_release(counter(state, me, FOLDED), s[TICKET] + j + 1)
            s[ARRIVED] = j + 1
            moved += 1
        i = s[PART]
        if i < s[ARRIVED] and all_reached(state, FOLDED, s[TICKET] + i + 1):
            for owner in range(ranks):
                start, length = piece_start(n, chunk, owner, i, size), piece_length(n, chunk, owner, i, size)
                if owner != me and length > 0:
                    theirs = words(counter(state, owner, ADDRESSES))[1] + start
                    if read(state, owner, S[DATA_AT] + start, theirs, length) < 0:
                        S[ERROR_DETAIL] = owner
                        return -MPI_FAILED
            s[PART] = i + 1
            moved += 1
            if s[PART] == pieces:
                store_release(counter(state, me, TAKEN), s[TICKET] + pieces)
        if before == moved:
            return moved
    if not all_reached(state, TAKEN, s[TICKET] + pieces):  # who returns may write where others still read
        return moved
    s[FINISHED] = s[PIECES]
    return moved + 1
