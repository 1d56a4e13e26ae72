"""What a collective of several nodes does within one, in one pass over symmetric memory of that node.

A hierarchical allreduce goes within nodes, between nodes, and within nodes again; each of these kernels stands for one
phase of its schedule. Each node decides for itself: where memory is not symmetric, which all ranks of the node see
alike, both are left undone and the phases follow. Messages between nodes are the same either way.

    reduce_scatter  all fold their chunk of all shares, into their own
    allgather       all write their chunk to all shares

Between the two nobody accesses a chunk of anybody's share but the rank whose chunk it is, so the second needs no
opening barrier, and the first no closing one.
"""

from numba import cfunc

from collectives import layout as at
from collectives.native.fused import SIGNATURE, all_reached
from collectives.native.layout import COMM, ISSUED, NODE_RANK, NODE_SIZE, PASSED, PHASE, SEQ, SERVED
from collectives.native.memory import words
from collectives.native.one_pass import (
    ARRIVING,
    PASSING,
    arrive,
    came,
    fold_turn,
    next_phase,
    passed,
    share_of,
    spread_turn,
)


@cfunc(SIGNATURE, cache=True)
def reduce_scatter(state: int, row: int, step: int) -> int:
    S, s, R = words(state), words(step), words(row)
    if s[ISSUED] == ARRIVING:
        moved = arrive(state, step)
        if s[ISSUED] == ARRIVING:
            return moved
    target = S[share_of(state, words(S[COMM])[NODE_RANK])] + R[at.OFFSET]
    if fold_turn(state, row, step, R[at.OFFSET], R[at.CHUNK_BYTES], target):
        S[SERVED] = 1
        S[PHASE] += R[at.STANDS_FOR]
        return next_phase(step)
    return 1


@cfunc(SIGNATURE, cache=True)
def allgather(state: int, row: int, step: int) -> int:
    S, s, R = words(state), words(step), words(row)
    if S[SERVED] == 0:
        return next_phase(step)
    if s[ISSUED] == ARRIVING:
        for rank in range(words(S[COMM])[NODE_SIZE]):  # folds between nodes have used the room where that was noted
            found = came(state, rank)
            if found <= 0:
                return found
        s[ISSUED] = PASSING
    if s[ISSUED] == PASSING:
        mine = S[share_of(state, words(S[COMM])[NODE_RANK])] + R[at.OFFSET]
        if not spread_turn(state, step, mine, R[at.OFFSET], R[at.CHUNK_BYTES]):
            return 1
        passed(state, step)
    if not all_reached(state, PASSED, S[SEQ]):
        return 0
    S[PHASE] += R[at.STANDS_FOR]
    return next_phase(step)
