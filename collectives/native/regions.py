"""Where memory lies in regions that all ranks of a node map: the directory that `symmetric.py` writes and kernels read.

A place is one word, a region's number and an offset in it, and means the same to every rank; 0 is memory that others
do not map.
"""

from numba import njit

from collectives.native.layout import (
    COMM,
    COPIED_BYTES,
    DATA_AT,
    FINGERPRINT_3,
    INPUT_AT,
    OFFSET_BITS,
    OPTIONAL_SHARE,
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
    SHARE_OF_OUTPUT,
    SHARED_BYTES,
    SHARES,
)
from collectives.native.memory import copy, inlined, words


@njit(**inlined)
def place_of(directory: int, address: int, n_bytes: int) -> int:
    """The place of bytes of mine; 0 unless one region that has not ended holds them all."""
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
    """Where I find a place of a rank of the node; 0 where it has none."""
    if place == 0:
        return 0
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
    directory, share, place = words(S[COMM])[REGIONS], S[SHARES], 0
    if directory:
        address = S[DATA_AT] if share == SHARE_OF_OUTPUT else S[INPUT_AT]
        place = place_of(directory, address, S[SHARED_BYTES])
        if place and address != S[INPUT_AT]:
            copy(address, S[INPUT_AT], S[COPIED_BYTES])
    S[SERVED], S[FINGERPRINT_3] = 0, place
    S[PHASE] = directory == 0 or (place == 0 and share != OPTIONAL_SHARE)
    return place
