"""Collectives of symmetric memory in one pass over everybody's data, with nothing in between.

Their twins are the algorithms called one_pass (algorithms/one_pass.py). What a rank lets others access is its share:
the input, or the output. Publishing a call is the opening barrier: who has published has its data in its share, and
says in the same line where that lies. PASSED is the closing one: a rank sets it when it will access no other rank's
share any more, and returns when nobody will access its own:

    allreduce       all fold their chunk of all shares, and write it to all of them
    reduce          the same, written to root's alone
    reduce_scatter  all fold their chunk of all shares, into memory of their own
    allgather       all write their chunk to all shares, which are the outputs
    broadcast       all copy root's share as soon as root has come. Where a rank has a share too, and the message is
                    long, root writes the end of it meanwhile: two cores are faster than one

Where a rank that must share publishes no place, everyone sees it, and leaves the step undone: the phases that follow do
the call in the ordinary way.
"""

from numba import cfunc, njit

from collectives import layout as at
from collectives.native.board import differs, entry_of
from collectives.native.fused import SIGNATURE, all_reached, chunk_bytes, chunk_start, counter, fold, weights_at
from collectives.native.layout import (
    ARRIVED,
    BOARD,
    BYTES,
    COMM,
    DATA_AT,
    ERROR_DETAIL,
    FINGERPRINT_3,
    FINGERPRINT_WORDS,
    FINISHED,
    INPUT_AT,
    ISSUED,
    ITEMSIZE,
    KERNEL_TO_MANY,
    MISMATCH,
    NODE_RANK,
    NODE_SIZE,
    OPERANDS_AT,
    PART,
    PASSED,
    PHASE,
    PIECES,
    REGIONS,
    SEQ,
    SERVED,
    TABLE,
)
from collectives.native.memory import call_kernel, copy, inlined, load_acquire, store_release, words
from collectives.native.regions import address_of

NEAR_BYTES = 1 << 13  # copied at once where there are several targets: it is in the nearest cache then
TURN_BYTES = 1 << 20  # after which others get a turn
PUSH_BYTES = 1 << 17  # from which root of a broadcast does its share of the copying

ARRIVING, PASSING, LEAVING = range(3)  # ISSUED


# ---------------------------------------------------------------- barriers
@njit(**inlined)
def next_phase(step: int) -> int:
    """Go on to the ordinary phases, or to the end."""
    s = words(step)
    s[FINISHED] = s[PIECES]
    return 1


@njit(**inlined)
def share_of(state: int, rank: int) -> int:
    """The word of the state that says where I find a rank's share, once it has come; 0 if it has none."""
    return words(state)[OPERANDS_AT] + words(words(state)[COMM])[NODE_SIZE] + rank


@njit(**inlined)
def came(state: int, rank: int) -> int:
    """Whether a rank has published this call: its share is noted then. Negative where it calls something else."""
    S = words(state)
    C = words(S[COMM])
    entry = entry_of(C[BOARD], rank, S[SEQ])
    if load_acquire(entry) != S[SEQ]:
        return 0
    if differs(entry_of(C[BOARD], C[NODE_RANK], S[SEQ]), entry):
        S[ERROR_DETAIL] = S[SEQ]
        return -MISMATCH
    S[share_of(state, rank)] = address_of(C[REGIONS], rank, words(entry)[FINGERPRINT_WORDS])
    return 1


@njit(**inlined)
def arrive(state: int, step: int) -> int:
    """Go on to PASSING when everyone has come, and shares; leave the step undone where somebody does not share."""
    S, s = words(state), words(step)
    ranks = words(S[COMM])[NODE_SIZE]
    while s[ARRIVED] < ranks:
        found = came(state, s[ARRIVED])
        if found <= 0:
            return found
        s[ARRIVED] += 1
    for rank in range(ranks):
        if S[share_of(state, rank)] == 0:
            return next_phase(step)
    s[ISSUED] = PASSING
    return 1


@njit(**inlined)
def passed(state: int, step: int) -> None:
    """Tell the others that I access their shares no more in this call."""
    S = words(state)
    store_release(counter(state, words(S[COMM])[NODE_RANK], PASSED), S[SEQ])
    words(step)[ISSUED] = LEAVING


@njit(**inlined)
def leave(state: int, step: int, awaited: int) -> int:
    """Return, when the others are done with my share; what follows is for ranks that have none."""
    S = words(state)
    if awaited and not all_reached(state, PASSED, S[SEQ]):
        return 0
    S[PHASE], S[SERVED] = words(S[TABLE])[at.N_PHASES] - 1, 1
    return next_phase(step)


# ---------------------------------------------------------------- what is done between them
@njit(**inlined)
def note_operands(state: int, start: int) -> int:
    """All shares from there on, in rank order, as a kernel's operands: their address."""
    S = words(state)
    at = state + 8 * S[OPERANDS_AT]
    for rank in range(words(S[COMM])[NODE_SIZE]):
        words(at)[rank] = S[share_of(state, rank)] + start
    return at


@njit(**inlined)
def fold_turn(state: int, row: int, step: int, start: int, length: int, target: int) -> int:
    """Some more of so many bytes from `start` on, folded to `target`; whether that is all."""
    s = words(step)
    piece = min(TURN_BYTES, length - s[PART])
    if piece > 0:
        note_operands(state, start + s[PART])
        fold(state, row, target + s[PART], piece)
        s[PART] += piece
    return s[PART] >= length


@njit(**inlined)
def copy_turn(step: int, target: int, source: int, length: int) -> int:
    """Some more of so many bytes; whether that is all."""
    s = words(step)
    piece = min(TURN_BYTES, length - s[PART])
    if piece > 0:
        copy(target + s[PART], source + s[PART], piece)
        s[PART] += piece
    return s[PART] >= length


@njit(**inlined)
def spread_turn(state: int, step: int, source: int, start: int, length: int) -> int:
    """Some more of so many bytes at source, written to all shares from `start` on; whether that is all."""
    s = words(step)
    until = min(length, s[PART] + TURN_BYTES)
    while s[PART] < until:
        piece, from_ = min(NEAR_BYTES, until - s[PART]), source + s[PART]
        for rank in range(words(words(state)[COMM])[NODE_SIZE]):
            target = words(state)[share_of(state, rank)] + start + s[PART]
            if target != from_:
                copy(target, from_, piece)
        s[PART] += piece
    return s[PART] >= length


# ---------------------------------------------------------------- kernels
@cfunc(SIGNATURE, cache=True)
def allreduce(state: int, row: int, step: int) -> int:
    S, s = words(state), words(step)
    C, n = words(S[COMM]), s[BYTES]
    me, ranks = C[NODE_RANK], C[NODE_SIZE]
    if s[ISSUED] == ARRIVING:
        moved = arrive(state, step)
        if s[ISSUED] == ARRIVING:
            return moved
    if s[ISSUED] == PASSING:
        chunk = chunk_bytes(n, ranks)
        start = min(n, me * chunk)
        length = min(n, start + chunk) - start
        piece = min(TURN_BYTES, length - s[PART])
        if piece > 0:
            operands = note_operands(state, start + s[PART])
            call_kernel(S[KERNEL_TO_MANY], operands, operands, ranks, piece // S[ITEMSIZE], weights_at(state, row))
            s[PART] += piece
        if s[PART] < length:
            return 1
        passed(state, step)
    return leave(state, step, 1)


@cfunc(SIGNATURE, cache=True)
def reduce(state: int, row: int, step: int) -> int:
    S, s = words(state), words(step)
    C, n = words(S[COMM]), s[BYTES]
    me, ranks = C[NODE_RANK], C[NODE_SIZE]
    if s[ISSUED] == ARRIVING:
        moved = arrive(state, step)
        if s[ISSUED] == ARRIVING:
            return moved
    if s[ISSUED] == PASSING:
        chunk = chunk_bytes(n, ranks)
        start = min(n, me * chunk)
        target = S[share_of(state, words(row)[at.OWNER])] + start
        if not fold_turn(state, row, step, start, min(n, start + chunk) - start, target):
            return 1
        passed(state, step)
    return leave(state, step, 1)


@cfunc(SIGNATURE, cache=True)
def reduce_scatter(state: int, row: int, step: int) -> int:
    S, s = words(state), words(step)
    C, n = words(S[COMM]), s[BYTES]
    me, ranks = C[NODE_RANK], C[NODE_SIZE]
    if s[ISSUED] == ARRIVING:
        moved = arrive(state, step)
        if s[ISSUED] == ARRIVING:
            return moved
    if s[ISSUED] == PASSING:
        start = chunk_start(n, ranks, row, me)
        if not fold_turn(state, row, step, start, chunk_start(n, ranks, row, me + 1) - start, S[DATA_AT]):
            return 1
        passed(state, step)
    return leave(state, step, 1)


@cfunc(SIGNATURE, cache=True)
def allgather(state: int, row: int, step: int) -> int:
    S, s = words(state), words(step)
    C, n = words(S[COMM]), s[BYTES]
    me, ranks = C[NODE_RANK], C[NODE_SIZE]
    if s[ISSUED] == ARRIVING:
        moved = arrive(state, step)
        if s[ISSUED] == ARRIVING:
            return moved
    if s[ISSUED] == PASSING:
        start = chunk_start(n, ranks, row, me)
        length = chunk_start(n, ranks, row, me + 1) - start
        if not spread_turn(state, step, S[INPUT_AT], start, length):
            return 1
        passed(state, step)
    return leave(state, step, 1)


@njit(**inlined)
def pushed_bytes(state: int, step: int, rank: int) -> int:
    """What root writes, to the end of a rank's share of a long message, while that rank reads the rest."""
    n, ranks = words(step)[BYTES], words(words(state)[COMM])[NODE_SIZE]
    return n // ranks // 64 * 64 if n >= PUSH_BYTES and words(state)[share_of(state, rank)] else 0


@cfunc(SIGNATURE, cache=True)
def broadcast(state: int, row: int, step: int) -> int:
    S, s = words(state), words(step)
    me, ranks, root, n = words(S[COMM])[NODE_RANK], words(S[COMM])[NODE_SIZE], words(row)[at.OWNER], s[BYTES]
    if me == root:
        while s[ISSUED] == ARRIVING and n >= PUSH_BYTES and s[ARRIVED] < ranks - 1:
            rank = (me + 1 + s[ARRIVED]) % ranks
            found = came(state, rank)
            if found <= 0:
                return found
            pushed = pushed_bytes(state, step, rank)
            start = n - pushed
            if not copy_turn(step, S[share_of(state, rank)] + start, S[DATA_AT] + start, pushed):
                return 1
            s[PART] = 0
            s[ARRIVED] += 1
        if s[ISSUED] == ARRIVING:
            passed(state, step)
        return leave(state, step, 1)
    if s[ISSUED] == ARRIVING:
        found = came(state, root)
        if found <= 0:
            return found
        if S[share_of(state, root)] == 0:
            return next_phase(step)
        S[share_of(state, me)] = S[FINGERPRINT_3]
        s[ISSUED] = PASSING
    pushed = pushed_bytes(state, step, me)
    if s[ISSUED] == PASSING:
        if not copy_turn(step, S[DATA_AT], S[share_of(state, root)], n - pushed):
            return 1
        passed(state, step)
    if pushed and load_acquire(counter(state, root, PASSED)) < S[SEQ]:
        return 0
    return leave(state, step, 0)
