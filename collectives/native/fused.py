"""Node kernels: a collective of ranks that share memory, as one resumable step.

A kernel moves as far as it can and returns how much that was: 0 where it must wait. Each does what its schedule twin
does (algorithms/direct.py), and builds the same tree: everything is folded once, in rank order. Here is what kernels
have in common, and the simplest of them.

Each rank has staging that all others read, and lines of counters that it alone writes. Counters only grow, over all
calls alike, so kernels of different kinds may follow each other. Staging has two halves, used in turn: a rank begins a
kernel's call when all have ended the last but one, whose half it is about to write over. It seldom has to look: who has
ended a call in which it saw something of every other rank knows that all of them had ended the call before.
"""

from numba import cfunc, njit

from collectives import layout as at
from collectives.native.layout import (
    ALIKE_UNTIL,
    ALL_ENDED,
    BYTES,
    CHAIN_NOW,
    CHAIN_OF,
    COMM,
    DATA_AT,
    ENDED,
    FINISHED,
    GIVEN,
    HALF_BYTES,
    INLINE_BYTES,
    INPUT_AT,
    ITEMSIZE,
    KERNEL,
    KERNEL_BYTES,
    KERNEL_CALLS,
    KERNEL_LINES,
    KERNEL_PIECES,
    KERNELS,
    NODE_RANK,
    NODE_SIZE,
    OPERANDS_AT,
    PIECES,
    SEQ,
    SHORT,
    STAGE_AT,
    TABLE,
    TICKET,
)
from collectives.native.memory import call_kernel, copy, inlined, load_acquire, store_release, words

SIGNATURE = "int64(int64,int64,int64)"  # state, row, step


@njit(**inlined)
def counter(state: int, rank: int, line: int) -> int:
    """Address of a rank's line."""
    return words(words(state)[COMM])[KERNELS] + rank * KERNEL_BYTES + 64 * line


@njit(**inlined)
def staging(state: int, step: int, rank: int) -> int:
    """A rank's half of staging in this call."""
    return counter(state, rank, 0) + words(step)[STAGE_AT]


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
def begin(state: int, step: int, pieces: int) -> int:
    """Take the call's place in the counters, and its half of staging; 0 while someone may still read that."""
    s, C = words(step), words(words(state)[COMM])
    calls = C[KERNEL_CALLS]
    if C[ALL_ENDED] < calls - 1:
        if not all_reached(state, ENDED, calls - 1):
            return 0
        C[ALL_ENDED] = calls - 1
    s[TICKET], s[STAGE_AT] = C[KERNEL_PIECES], 64 * KERNEL_LINES + (calls & 1) * HALF_BYTES
    C[KERNEL_PIECES] += pieces
    C[KERNEL_CALLS] = calls + 1
    return 1


@njit(**inlined)
def end(state: int, step: int, saw_everyone: int) -> None:
    """The call is done, as far as I am concerned."""
    s, C = words(step), words(words(state)[COMM])
    if saw_everyone:
        C[ALL_ENDED] = C[KERNEL_CALLS] - 1
    store_release(counter(state, C[NODE_RANK], ENDED), C[KERNEL_CALLS])
    s[FINISHED] = s[PIECES]


@njit(**inlined)
def fold(state: int, row: int, target: int, n_bytes: int) -> None:
    """Of the operands noted, one for each rank."""
    S = words(state)
    operands, ranks = state + 8 * S[OPERANDS_AT], words(S[COMM])[NODE_SIZE]
    call_kernel(S[KERNEL], target, operands, ranks, n_bytes // S[ITEMSIZE], weights_at(state, row))


@njit(**inlined)
def chunk_bytes(n: int, ranks: int) -> int:
    """Length of every rank's chunk but the last ones', a whole number of lines."""
    return ((n + ranks - 1) // ranks + 63) // 64 * 64


@njit(**inlined)
def chunk_start(n: int, ranks: int, row: int, owner: int) -> int:
    """Where an owner's chunk begins, in bytes: all have theirs as torch.tensor_split cuts units, or one has all."""
    unit, only = words(row)[at.UNIT], words(row)[at.OWNER]
    if only != at.EVERYONE:
        return 0 if owner <= only else n
    units = (n + unit - 1) // unit
    return min(n, (owner * (units // ranks) + min(owner, units % ranks)) * unit)


@njit(**inlined)
def piece_start(step: int, row: int, ranks: int, owner: int, k: int) -> int:
    return chunk_start(words(step)[BYTES], ranks, row, owner) + k * words(row)[at.KERNEL_PIECE]


@njit(**inlined)
def piece_length(step: int, row: int, ranks: int, owner: int, k: int) -> int:
    """Not positive where the chunk has no piece k."""
    rest = chunk_start(words(step)[BYTES], ranks, row, owner + 1) - piece_start(step, row, ranks, owner, k)
    return min(words(row)[at.KERNEL_PIECE], rest)


@njit(**inlined)
def most_pieces(n: int, ranks: int, row: int) -> int:
    """Of a chunk."""
    longest = chunk_start(n, ranks, row, 1) if words(row)[at.OWNER] == at.EVERYONE else n
    return (longest + words(row)[at.KERNEL_PIECE] - 1) // words(row)[at.KERNEL_PIECE]


@njit(**inlined)
def shot_line(step: int, n: int) -> int:
    """The line that says that a rank has given everything: a few bytes lie behind the counter itself."""
    second = words(step)[STAGE_AT] >= 64 * KERNEL_LINES + HALF_BYTES
    return SHORT + second if n <= INLINE_BYTES else GIVEN


@njit(**inlined)
def shot(state: int, step: int, rank: int, n: int) -> int:
    """Address of what a rank gives."""
    return counter(state, rank, shot_line(step, n)) + 16 if n <= INLINE_BYTES else staging(state, step, rank)


@cfunc(SIGNATURE, cache=True)
def one_shot(state: int, row: int, step: int) -> int:
    """Everyone gives everything, and folds everything."""
    S, s = words(state), words(step)
    C, n = words(S[COMM]), s[BYTES]
    me = C[NODE_RANK]
    if s[STAGE_AT] == 0:
        if not begin(state, step, 1):
            return 0
        copy(shot(state, step, me, n), S[INPUT_AT], n)
        mine = counter(state, me, shot_line(step, n))
        words(mine)[CHAIN_OF] = S[CHAIN_NOW]
        store_release(mine, s[TICKET] + 1)
    if not all_reached(state, shot_line(step, n), s[TICKET] + 1):
        return 0
    operands, alike = words(state + 8 * S[OPERANDS_AT]), True
    for rank in range(C[NODE_SIZE]):
        alike &= words(counter(state, rank, shot_line(step, n)))[CHAIN_OF] == S[CHAIN_NOW]
        operands[rank] = S[INPUT_AT] if rank == me else shot(state, step, rank, n)
    if alike:  # which need not be seen: a rank may be in its next call already. Then the board says it
        C[ALIKE_UNTIL] = S[SEQ]
    fold(state, row, S[DATA_AT], n)
    end(state, step, 1)
    return 1
