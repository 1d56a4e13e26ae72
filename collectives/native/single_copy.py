"""The node kernel without staging: processes copy straight from each other's memory, by process_vm_readv.

Owners, takers and counters are those of staged.py. Owners read what they fold; where nothing is folded, what they own
is there from the beginning. Nobody returns before all have read (TAKEN), since its caller may write there at once.
"""

from typing import Any

from numba import cfunc, njit, types

from collectives import layout as at
from collectives.native.fused import (
    SIGNATURE,
    all_reached,
    begin,
    chunk_start,
    counter,
    end,
    fold,
    most_pieces,
    piece_length,
    piece_start,
    staging,
)
from collectives.native.layout import (
    ADDRESSES,
    ARRIVED,
    BYTES,
    COMM,
    DATA_AT,
    ERROR_DETAIL,
    FOLDED,
    GIVEN,
    INPUT_AT,
    ISSUED,
    LOCAL,
    LOCAL_BYTES,
    MPI_FAILED,
    NODE_RANK,
    NODE_SIZE,
    OPERANDS_AT,
    PART,
    PIDS_AT,
    REMOTE,
    REMOTE_BYTES,
    STAGE_AT,
    TAG,
    TAKEN,
    TICKET,
)
from collectives.native.memory import copy, inlined, store_release, words

INPUTS, RESULTS = range(2)  # of a rank's ADDRESSES: where the message begins, or would begin
MOST_PIECES = TAG  # of the step's state: pieces of a chunk, at most
_read: Any = types.ExternalFunction(
    "process_vm_readv", types.int64(types.int64, types.int64, types.uint64, types.int64, types.uint64, types.uint64)
)


@njit(**inlined)
def read(state: int, rank: int, target: int, what: int, place: int, n_bytes: int) -> int:
    """Copy from another rank's memory; negative where that failed."""
    S = words(state)
    source = words(counter(state, rank, ADDRESSES))[what] + place
    S[LOCAL], S[LOCAL_BYTES], S[REMOTE], S[REMOTE_BYTES] = target, n_bytes, source, n_bytes
    pid = words(S[COMM] + 8 * words(S[COMM])[PIDS_AT])[rank]
    if _read(pid, state + 8 * LOCAL, 1, state + 8 * REMOTE, 1, 0) == n_bytes:
        return 0
    S[ERROR_DETAIL] = rank
    return -MPI_FAILED


@njit(**inlined)
def start(state: int, step: int, row: int, me: int, ranks: int) -> int:
    """Say where my memory lies, and place what I own already; 0 where it must wait."""
    S, s, R = words(state), words(step), words(row)
    s[MOST_PIECES] = most_pieces(s[BYTES], ranks, row)
    if not begin(state, step, s[MOST_PIECES]):
        return 0
    mine = chunk_start(s[BYTES], ranks, row, me)
    places = words(counter(state, me, ADDRESSES))
    places[RESULTS] = S[DATA_AT]
    places[INPUTS] = S[INPUT_AT] - (mine if R[at.OWNER] == at.EVERYONE and not R[at.GIVES] else 0)
    store_release(counter(state, me, GIVEN), s[TICKET] + s[MOST_PIECES])
    if not R[at.GIVES]:
        length = chunk_start(s[BYTES], ranks, row, me + 1) - mine
        if length > 0 and places[INPUTS] != places[RESULTS]:
            copy(places[RESULTS] + mine, places[INPUTS] + mine, length)
        s[ARRIVED] = s[MOST_PIECES]
    return 1


@njit(**inlined)
def own(state: int, step: int, row: int, me: int, ranks: int) -> int:
    """Read and fold the next piece of my chunk."""
    s = words(step)
    place, length = piece_start(step, row, ranks, me, s[ARRIVED]), piece_length(step, row, ranks, me, s[ARRIVED])
    operands = words(state + 8 * words(state)[OPERANDS_AT])
    for rank in range(ranks if length > 0 else 0):
        operands[rank] = words(state)[INPUT_AT] + place
        if rank != me:
            operands[rank] = staging(state, step, me) + rank * words(row)[at.KERNEL_PIECE]
            failed = read(state, rank, operands[rank], INPUTS, place, length)
            if failed:
                return failed
    if length > 0:
        fold(state, row, words(state)[DATA_AT] + place, length)
    s[ARRIVED] += 1
    store_release(counter(state, me, FOLDED), s[TICKET] + s[ARRIVED])
    return 1


@njit(**inlined)
def take(state: int, step: int, row: int, me: int, ranks: int) -> int:
    """Read from each owner the next piece of its chunk."""
    s, what = words(step), RESULTS if words(row)[at.GIVES] else INPUTS
    for owner in range(ranks):
        place, length = piece_start(step, row, ranks, owner, s[PART]), piece_length(step, row, ranks, owner, s[PART])
        if owner != me and length > 0:
            failed = read(state, owner, words(state)[DATA_AT] + place, what, place, length)
            if failed:
                return failed
    s[PART] += 1
    return 1


@cfunc(SIGNATURE, cache=True)
def single_copy(state: int, row: int, step: int) -> int:
    """As many pieces as can be moved. Everyone is an owner, or the root is; everyone takes."""
    s, C = words(step), words(words(state)[COMM])
    me, ranks, gives = C[NODE_RANK], C[NODE_SIZE], words(row)[at.GIVES]
    if s[STAGE_AT] == 0 and not start(state, step, row, me, ranks):
        return 0
    pieces, moved = s[MOST_PIECES], 0
    if s[ISSUED] == 0:
        if not all_reached(state, GIVEN, s[TICKET] + pieces):
            return 0
        s[ISSUED] = 1
    while s[PART] < pieces:
        before = moved
        if s[ARRIVED] < pieces:
            got = own(state, step, row, me, ranks)
            if got < 0:
                return got
            moved += got
        if s[PART] < s[ARRIVED] and (not gives or all_reached(state, FOLDED, s[TICKET] + s[PART] + 1)):
            got = take(state, step, row, me, ranks)
            if got < 0:
                return got
            moved += got
            if s[PART] == pieces:
                store_release(counter(state, me, TAKEN), s[TICKET] + pieces)
        if before == moved:
            return moved
    if not all_reached(state, TAKEN, s[TICKET] + pieces):
        return moved
    end(state, step, 1)
    return moved + 1
