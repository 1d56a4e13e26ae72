"""Moving one piece of a message over a link. 1: something moved, 0: it must wait, negative: an error."""

from numba import njit

from collectives.layout import LINE, PREVIOUS, ROW_STATE_WORDS, SEND
from collectives.native.layout import (
    ARRIVED,
    BASE,
    BYTES,
    COMM,
    CREDIT,
    CURSOR,
    DEPTH,
    ERROR_DETAIL,
    FIFO_AT,
    FIFO_MEMORY,
    FINISHED,
    FLAG,
    INLINE_BYTES,
    ISSUED,
    MPI_BYTE,
    MPI_COMM,
    MPI_FAILED,
    MPI_IRECV,
    MPI_ISEND,
    MPI_TEST,
    PAYLOAD,
    PIECE,
    PIECES,
    R_KIND,
    REQUEST_0,
    ROW,
    STAGE_AT,
    STATUS_IGNORE,
    TAG,
    TICKET,
)
from collectives.native.memory import call_test, call_transfer, copy, inlined, load_acquire, store_release, words


@njit(**inlined)
def piece_bytes(step: int, size: int) -> int:
    """Length of the next piece."""
    s = words(step)
    return min(size, s[BYTES] - s[FINISHED] * size)


# ---------------------------------------------------------------- shared memory: a FIFO owned by its sender
@njit(**inlined)
def fifo_slot(fifo: int, sequence: int) -> int:
    F = words(fifo)
    return F[FIFO_MEMORY] + LINE + (sequence & (F[DEPTH] - 1)) * (LINE + F[PAYLOAD])


@njit(**inlined)
def payload(slot: int, n_bytes: int) -> int:
    return slot + 16 if n_bytes <= INLINE_BYTES else slot + LINE


@njit(**inlined)
def fifo_send(step: int, size: int) -> int:
    s = words(step)
    F, sequence = words(s[FIFO_AT]), s[TICKET] + s[FINISHED]
    if F[CURSOR] != sequence:  # an earlier message of the round goes first
        return 0
    if sequence - F[CREDIT] >= F[DEPTH]:
        F[CREDIT] = load_acquire(F[FIFO_MEMORY])
        if sequence - F[CREDIT] >= F[DEPTH]:
            return 0
    n = piece_bytes(step, size)
    slot = fifo_slot(s[FIFO_AT], sequence)
    copy(payload(slot, n), s[BASE] + s[FINISHED] * size, n)
    store_release(slot, sequence + 1)
    F[CURSOR] = sequence + 1
    s[FINISHED] += 1
    return 1


@njit(**inlined)
def fifo_arrived(step: int, size: int) -> int:
    """Address of the next piece, or 0."""
    s = words(step)
    F, sequence = words(s[FIFO_AT]), s[TICKET] + s[FINISHED]
    if F[CURSOR] != sequence:
        return 0
    slot = fifo_slot(s[FIFO_AT], sequence)
    return payload(slot, piece_bytes(step, size)) if load_acquire(slot) == sequence + 1 else 0


@njit(**inlined)
def fifo_release(step: int) -> None:
    s = words(step)
    F = words(s[FIFO_AT])
    F[CURSOR] += 1
    s[FINISHED] += 1
    store_release(F[FIFO_MEMORY], F[CURSOR])


# ---------------------------------------------------------------- MPI: two pieces in flight for each message
@njit(**inlined)
def mpi_issue(state: int, step: int) -> int:
    """Start pieces until two are in flight. Messages of one pair and slot start in the order of their rows."""
    S, s = words(state), words(step)
    C, size, before = words(S[COMM]), S[PIECE], words(s[ROW])[PREVIOUS]
    if before:
        p = words(step - 8 * ROW_STATE_WORDS * before)
        if p[ISSUED] < p[PIECES]:
            return 1
    function = C[MPI_ISEND] if s[R_KIND] == SEND else C[MPI_IRECV]
    while s[ISSUED] < s[PIECES] and s[ISSUED] - s[FINISHED] < 2:
        k = s[ISSUED]
        where = s[STAGE_AT] + (k & 1) * size if s[STAGE_AT] else s[BASE] + k * size
        n = min(size, s[BYTES] - k * size)
        request = step + 8 * (REQUEST_0 + (k & 1))
        code = call_transfer(function, where, n, C[MPI_BYTE], s[TAG] >> 32, s[TAG] & 0xFFFFFFFF, C[MPI_COMM], request)
        if code != 0:
            S[ERROR_DETAIL] = code
            return -MPI_FAILED
        s[ISSUED] += 1
    return 1


@njit(**inlined)
def mpi_arrived(state: int, step: int) -> int:
    """1 once the oldest piece in flight is complete (remembered in ARRIVED)."""
    S, s = words(state), words(step)
    C = words(S[COMM])
    if s[ARRIVED] > s[FINISHED]:
        return 1
    if s[ISSUED] == s[FINISHED]:
        return 0
    request = step + 8 * (REQUEST_0 + (s[FINISHED] & 1))
    code = call_test(C[MPI_TEST], request, state + 8 * FLAG, C[STATUS_IGNORE])
    if code != 0:
        S[ERROR_DETAIL] = code
        return -MPI_FAILED
    if S[FLAG] & 0xFFFFFFFF == 0:
        return 0
    s[ARRIVED] += 1
    return 1
