"""An allreduce of symmetric memory in one pass: everyone folds its chunk of all ranks' data, and writes it to all.

The twin is two_shot (algorithms/direct.py): everything is folded once, in rank order. Publishing a call is the opening
barrier, since it is what others wait for: who has published has written its data. PASSED is the closing one: nobody
returns while another may still write, or read, its memory.

Where a rank's memory lies elsewhere (another region, another offset, or ordinary memory) everyone sees it in what was
published, and all leave the step undone: the phases that follow do the call in the ordinary way.
"""

from numba import cfunc

from collectives import layout as at
from collectives.native.board import differs, entry_of
from collectives.native.fused import SIGNATURE, all_reached, chunk_bytes, counter, fold
from collectives.native.layout import (
    BOARD,
    BYTES,
    COMM,
    DATA_AT,
    ERROR_DETAIL,
    FINGERPRINT_WORDS,
    FINISHED,
    ISSUED,
    MISMATCH,
    NODE_RANK,
    NODE_SIZE,
    OPERANDS_AT,
    PART,
    PASSED,
    PHASE,
    PIECES,
    REGION,
    REGION_BASES,
    SEQ,
    TABLE,
)
from collectives.native.memory import copy, load_acquire, store_release, words

PASS_BYTES = 1 << 13  # folded at once: what is copied to the others is in the nearest cache
TURN_BYTES = 1 << 20  # after which others get a turn

ARRIVING, PASSING, LEAVING = range(3)


@cfunc(SIGNATURE, cache=True)
def one_pass(state: int, row: int, step: int) -> int:
    S, s = words(state), words(step)
    C, n, region = words(S[COMM]), s[BYTES], words(S[REGION])
    me, ranks, board, seq = C[NODE_RANK], C[NODE_SIZE], C[BOARD], S[SEQ]
    if s[ISSUED] == ARRIVING:
        mine = entry_of(board, me, seq)
        elsewhere = 0
        for rank in range(ranks):
            entry = entry_of(board, rank, seq)
            if rank != me:
                if load_acquire(entry) != seq:
                    return 0
                if differs(mine, entry):
                    S[ERROR_DETAIL] = seq
                    return -MISMATCH
                elsewhere += words(entry)[FINGERPRINT_WORDS] != words(mine)[FINGERPRINT_WORDS]
        if elsewhere:
            s[FINISHED] = s[PIECES]
            return 1
        s[ISSUED] = PASSING
    offset = S[DATA_AT] - region[REGION_BASES + me]
    chunk = chunk_bytes(n, ranks)
    start = min(n, me * chunk)
    length = min(n, start + chunk) - start
    if s[ISSUED] == PASSING:
        operands = words(state + 8 * S[OPERANDS_AT])
        until = min(length, s[PART] + TURN_BYTES)
        while s[PART] < until:
            piece = min(PASS_BYTES, until - s[PART])
            for rank in range(ranks):
                operands[rank] = region[REGION_BASES + rank] + offset + start + s[PART]
            target = operands[me]
            fold(state, row, target, piece)
            for rank in range(ranks):
                if rank != me:
                    copy(operands[rank], target, piece)
            s[PART] += piece
        if s[PART] < length:
            return 1
        store_release(counter(state, me, PASSED), seq)
        s[ISSUED] = LEAVING
    if not all_reached(state, PASSED, seq):
        return 0
    S[PHASE] = words(S[TABLE])[at.N_PHASES] - 1  # what follows is for ranks whose memory lies elsewhere
    s[FINISHED] = s[PIECES]
    return 1
