"""The node kernel that moves a message through staging, piece by piece. One kernel serves all collectives:

                            GIVES   OWNER       TAKER       UNIT
    allreduce two_shot      yes     everyone    everyone    a line
    reduce two_shot         yes     everyone    the root    a line
    reduce direct           yes     the root    nobody      -
    reduce_scatter direct   yes     everyone    nobody      an element
    allgather direct        no      everyone    everyone    an element
    broadcast direct        no      the root    everyone    -

The message is cut into chunks, one for each owner. Ranks give each owner its chunk of what they have (GIVEN counts
pieces); an owner folds what all have given, or has the chunk already, and hands it out (FOLDED); takers take it
(TAKEN). Gifts and results lie in rings of RING pieces, in the staging of who made them. Piece k is written over by
piece k + RING, which therefore waits until all who read it have done so: the owners by FOLDED, the takers by TAKEN.
What a rank has seen of that it keeps, so that one look serves for many pieces.
"""

from numba import cfunc, njit

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
    ARRIVED,
    BASE,
    BYTES,
    COMM,
    DATA_AT,
    FIFO_AT,
    FOLDED,
    GIVEN,
    INPUT_AT,
    ISSUED,
    LAG,
    NODE_RANK,
    NODE_SIZE,
    OPERANDS_AT,
    PART,
    REQUEST_0,
    REQUEST_1,
    RING,
    STAGE_AT,
    TAG,
    TAKEN,
    TICKET,
)
from collectives.native.memory import copy, inlined, load_acquire, store_release, words

SOURCE, TARGET = BASE, FIFO_AT  # of the step's state: where the message would begin, of which I may have a chunk alone
KNOWN_FOLDED, KNOWN_TAKEN = REQUEST_0, REQUEST_1  # pieces that all have read, as far as I have seen
MOST_PIECES = TAG  # of a chunk


@njit(**inlined)
def reached(state: int, who: int, line: int, value: int) -> int:
    """Whether a rank's counter, or with EVERYONE all other ranks', has come to `value`."""
    if who == at.EVERYONE:
        return all_reached(state, line, value)
    return who == words(words(state)[COMM])[NODE_RANK] or load_acquire(counter(state, who, line)) >= value


@njit(**inlined)
def room(state: int, step: int, known: int, who: int, line: int, k: int) -> int:
    """Whether everyone has read the piece that piece k is written over."""
    s = words(step)
    if k - RING >= s[known]:
        if not reached(state, who, line, s[TICKET] + k - RING + 1):
            return 0
        s[known] = k - RING + 1
    return 1


@njit(**inlined)
def gift(state: int, step: int, row: int, giver: int, owner: int, k: int) -> int:
    """Address of what one rank gives another."""
    place = k % RING * words(words(state)[COMM])[NODE_SIZE] + owner
    return staging(state, step, giver) + place * words(row)[at.KERNEL_PIECE]


@njit(**inlined)
def result(state: int, step: int, row: int, owner: int, k: int) -> int:
    """Address of what an owner hands out."""
    gifts = RING * words(words(state)[COMM])[NODE_SIZE] if words(row)[at.GIVES] else 0
    place = gifts + k % RING
    return staging(state, step, owner) + place * words(row)[at.KERNEL_PIECE]


@njit(**inlined)
def start(state: int, step: int, row: int) -> int:
    """Begin the call, and note what it needs; 0 where it must wait."""
    S, s, R = words(state), words(step), words(row)
    C = words(S[COMM])
    ranks, gives, all_own = C[NODE_SIZE], R[at.GIVES], R[at.OWNER] == at.EVERYONE
    pieces = most_pieces(s[BYTES], ranks, row)
    if not begin(state, step, pieces):
        return 0
    mine = chunk_start(s[BYTES], ranks, row, C[NODE_RANK])
    s[SOURCE] = S[INPUT_AT] - (mine if all_own and not gives else 0)
    s[TARGET] = S[DATA_AT] - (mine if all_own and R[at.TAKER] == at.NOBODY else 0)
    s[KNOWN_FOLDED] = s[KNOWN_TAKEN] = 0
    s[MOST_PIECES] = pieces
    s[ISSUED] = 0 if gives else pieces
    return 1


@njit(**inlined)
def give(state: int, step: int, row: int, me: int, ranks: int) -> None:
    """To each owner the next piece of its chunk."""
    s = words(step)
    k = s[ISSUED]
    for owner in range(ranks):
        length = piece_length(step, row, ranks, owner, k)
        if owner != me and length > 0:
            copy(gift(state, step, row, me, owner, k), s[SOURCE] + piece_start(step, row, ranks, owner, k), length)
    store_release(counter(state, me, GIVEN), s[TICKET] + k + 1)
    s[ISSUED] = k + 1


@njit(**inlined)
def fold_and_hand(state: int, step: int, row: int, me: int, ranks: int) -> None:
    """Fold what all have given of the next piece of my chunk, and hand it out."""
    s, taker = words(step), words(row)[at.TAKER]
    j = s[ARRIVED]
    place, length = piece_start(step, row, ranks, me, j), piece_length(step, row, ranks, me, j)
    if length > 0:
        handed = result(state, step, row, me, j)
        target = s[TARGET] + place if taker == at.EVERYONE or taker == at.NOBODY or taker == me else handed
        operands = words(state + 8 * words(state)[OPERANDS_AT])
        for rank in range(ranks):
            operands[rank] = s[SOURCE] + place if rank == me else gift(state, step, row, rank, me, j)
        fold(state, row, target, length)
        if taker == at.EVERYONE:
            copy(handed, target, length)
    store_release(counter(state, me, FOLDED), s[TICKET] + j + 1)
    s[ARRIVED] = j + 1


@njit(**inlined)
def hand(state: int, step: int, row: int, me: int, ranks: int) -> None:
    """Hand out the next piece of my chunk, and then have it myself."""
    s = words(step)
    j = s[ARRIVED]
    place, length = piece_start(step, row, ranks, me, j), piece_length(step, row, ranks, me, j)
    if length > 0:
        copy(result(state, step, row, me, j), s[SOURCE] + place, length)
    store_release(counter(state, me, FOLDED), s[TICKET] + j + 1)
    s[ARRIVED] = j + 1
    if length > 0 and s[SOURCE] != s[TARGET]:
        copy(s[TARGET] + place, s[SOURCE] + place, length)


@njit(**inlined)
def take(state: int, step: int, row: int, me: int, ranks: int) -> None:
    """From each owner the next piece of its chunk."""
    s = words(step)
    i = s[PART]
    for owner in range(ranks):
        length = piece_length(step, row, ranks, owner, i)
        if owner != me and length > 0:
            copy(s[TARGET] + piece_start(step, row, ranks, owner, i), result(state, step, row, owner, i), length)
    store_release(counter(state, me, TAKEN), s[TICKET] + i + 1)
    s[PART] = i + 1


@cfunc(SIGNATURE, cache=True)
def staged(state: int, row: int, step: int) -> int:
    """As many pieces as can be moved."""
    s, R, C = words(step), words(row), words(words(state)[COMM])
    me, ranks, gives, owner, taker = C[NODE_RANK], C[NODE_SIZE], R[at.GIVES], R[at.OWNER], R[at.TAKER]
    owns, takes = owner == at.EVERYONE or owner == me, taker == at.EVERYONE or taker == me
    if s[STAGE_AT] == 0 and not start(state, step, row):
        return 0
    pieces, moved = s[MOST_PIECES], 0
    while s[ISSUED] < pieces or (owns and s[ARRIVED] < pieces) or (takes and s[PART] < pieces):
        before, k = moved, s[ISSUED]
        if k < pieces and room(state, step, KNOWN_FOLDED, owner, FOLDED, k):
            give(state, step, row, me, ranks)
            moved += 1
        j = s[ARRIVED]
        if owns and j < s[ISSUED] and (j + LAG <= s[ISSUED] or s[ISSUED] == pieces or before == moved):
            given = not gives or all_reached(state, GIVEN, s[TICKET] + j + 1)
            if given and (taker == at.NOBODY or room(state, step, KNOWN_TAKEN, taker, TAKEN, j)):
                if gives:
                    fold_and_hand(state, step, row, me, ranks)
                else:
                    hand(state, step, row, me, ranks)
                moved += 1
        i = s[PART]
        ready = takes and i < pieces and (i < s[ARRIVED] or not owns)
        if ready and reached(state, owner, FOLDED, s[TICKET] + i + 1):
            take(state, step, row, me, ranks)
            moved += 1
        if before == moved:
            return moved
    end(state, step, (owns and gives) or (takes and owner == at.EVERYONE))
    return moved + 1
