"""Where memory lies in regions that all ranks of a node map: the directory that `symmetric.py` writes and kernels read.

A place is one word, a region's number and an offset in it, and means the same to every rank. 0 is memory that others do
not map, NOTHING what nobody reads.
"""

from numba import njit

from collectives.native.layout import (
    COMM,
    DATA_AT,
    FINGERPRINT_3,
    INPUT_AT,
    NO_SHARE,
    OFFSET_BITS,
    PHASE,
    R_ENDED,
    R_FIRST_BASE,
    R_FROM,
    R_NUMBER,
    R_UNTIL,
    REGION_COUNT,
    REGION_ROW_AT,
    REGION_ROW_WORDS,
    REGIONS,
    SERVED,
    SHARE_OF_INPUT,
    SHARED_AT,
    SHARED_BYTES,
    SHARES,
)
from collectives.native.memory import copy, inlined, words

NOTHING = -1


@njit(**inlined)
def place_of(directory: int, address: int, n_bytes: int) -> int:
    """The place of bytes of mine; 0 unless one region that has not ended holds them all."""
    if n_bytes == 0:
        return NOTHING
    D = words(directory)
    size, low, high = 8 * D[REGION_ROW_WORDS], 0, D[REGION_COUNT]
    while low < high:  # rows are sorted by address
        middle = (low + high) // 2
        if words(directory + 8 * REGION_ROW_AT + middle * size)[R_FROM] <= address:
            low = middle + 1
        else:
            high = middle
    row = words(directory + 8 * REGION_ROW_AT + (low - 1) * size)
    if low == 0 or row[R_ENDED] or address + n_bytes > row[R_UNTIL]:
        return 0
    return row[R_NUMBER] << OFFSET_BITS | address - row[R_FROM]


@njit(**inlined)
def address_of(directory: int, rank: int, place: int) -> int:
    """Where I find a place of a rank of the node; 0 and NOTHING stay what they are."""
    if place <= 0:
        return place
    D = words(directory)
    rows = directory + 8 * REGION_ROW_AT
    index = words(rows + 8 * D[REGION_COUNT] * D[REGION_ROW_WORDS])[place >> OFFSET_BITS]
    base = words(rows + 8 * index * D[REGION_ROW_WORDS])[R_FIRST_BASE + rank]
    return base + (place & (1 << OFFSET_BITS) - 1)


@njit(**inlined)
def locate(state: int) -> int:
    """Note the place of what others will access in this call, with my data in it; 0 where the ordinary phases serve.

    Where nobody has made a region, which all ranks know, the phase of the single pass is left out at once.
    """
    S = words(state)
    directory, share, n_bytes, place = words(S[COMM])[REGIONS], S[SHARES], S[SHARED_BYTES], 0
    S[SERVED] = S[FINGERPRINT_3] = 0
    if share == NO_SHARE and directory:
        return 0
    if directory and share & SHARE_OF_INPUT:
        place = place_of(directory, S[INPUT_AT], n_bytes)
    if directory and place == 0 and share != SHARE_OF_INPUT:
        target = S[DATA_AT] + S[SHARED_AT]
        place = place_of(directory, target, n_bytes)
        if place > 0 and target != S[INPUT_AT]:
            copy(target, S[INPUT_AT], n_bytes)
    S[FINGERPRINT_3] = place
    S[PHASE] = place == 0
    return place
