"""The node's board: what each rank calls, so that ranks that disagree find out, and where and for whom each one waits.

A rank publishes a call before it starts: a line in its ring of the last calls, then its sequence number. Others compare
when they finish, and while they wait. Where all give each other everything, what stands for the call comes along in the
line that is read anyway, and says the same. A rank may run at most WINDOW calls ahead of the slowest of its node, so
that no line is written over before everyone has compared it.
"""

from numba import njit

from collectives.native.layout import (
    ALIKE_UNTIL,
    BOARD,
    BOARD_BYTES,
    BOARD_LINES,
    BOARD_STATUS,
    CALLED_AT,
    CAME_AT,
    COMM,
    COMPARED_AT,
    COMPARED_WORDS,
    COMPLETED,
    DEADLINE,
    ENTRY_WORDS,
    ERROR_KIND,
    ERROR_LANE,
    ERROR_PEER,
    ERROR_ROUND,
    ERROR_SEGMENT,
    ERROR_STEP,
    FINGERPRINT_0,
    FINGERPRINT_WORDS,
    GATE_LIMIT,
    GATED,
    HISTORY,
    LAST_SEQ,
    LEAVING,
    LEFT,
    NODE_RANK,
    NODE_SIZE,
    OUTRUN_NS,
    OUTRUN_SINCE,
    PHASE,
    PUBLISHED,
    SEQ,
    SITE,
    STAMPS,
    STANDS_FOR,
    STANDS_KIND,
    STANDS_LANE,
    STANDS_PHASE,
    STANDS_ROUND,
    STANDS_SEGMENT,
    STANDS_STEP,
    TIMEOUT_NS,
    WAITED_FROM,
    WAITS_IN,
    WAITS_SINCE,
    WINDOW,
)
from collectives.native.memory import cold, fetch_add, inlined, load_acquire, native, now_ns, store_release, words


@njit(**inlined)
def news_of(board: int, rank: int) -> int:
    """Address of a node rank's line of news."""
    return board + rank * BOARD_BYTES


@njit(**inlined)
def entry_of(board: int, rank: int, seq: int) -> int:
    return news_of(board, rank) + 8 * ENTRY_WORDS * (BOARD_LINES + seq % HISTORY)


@njit(**cold)
def find_gate(comm: int) -> None:
    """How far I may run ahead, from what the others of the node have published."""
    C = words(comm)
    slowest = C[LAST_SEQ]
    for rank in range(C[NODE_SIZE]):
        if rank != C[NODE_RANK]:
            slowest = min(slowest, load_acquire(news_of(C[BOARD], rank) + 8 * PUBLISHED))
    C[GATE_LIMIT] = slowest + WINDOW


@njit(**inlined)
def publish(state: int) -> int:
    """Tell the node what I call; 0 where I am too far ahead and must wait."""
    S = words(state)
    C = words(S[COMM])
    if C[BOARD]:
        if S[SEQ] > C[GATE_LIMIT]:
            find_gate(S[COMM])
            if S[SEQ] > C[GATE_LIMIT]:
                return 0
        entry = entry_of(C[BOARD], C[NODE_RANK], S[SEQ])
        E = words(entry)
        for k in range(FINGERPRINT_WORDS):
            E[1 + k] = S[FINGERPRINT_0 + k]
        if C[STAMPS]:
            E[CAME_AT] = now_ns()
        E[WAITED_FROM], E[CALLED_AT] = 0, S[SITE]
        store_release(entry, S[SEQ])
        store_release(news_of(C[BOARD], C[NODE_RANK]) + 8 * PUBLISHED, S[SEQ])
    S[GATED] = 0
    return 1


@njit(**cold)
def note_standing(state: int) -> None:
    """Tell the node where a call stands that waits, as note_waiting has found it."""
    S = words(state)
    C = words(S[COMM])
    if C[BOARD]:
        news = words(news_of(C[BOARD], C[NODE_RANK]))
        since = S[DEADLINE] - S[TIMEOUT_NS] if S[DEADLINE] else 0
        if not S[GATED]:
            words(entry_of(C[BOARD], C[NODE_RANK], S[SEQ]))[WAITED_FROM] = since
        news[WAITS_SINCE], news[STANDS_PHASE] = since, S[PHASE]
        news[STANDS_FOR], news[STANDS_KIND], news[STANDS_LANE] = S[ERROR_PEER], S[ERROR_KIND], S[ERROR_LANE]
        news[STANDS_SEGMENT], news[STANDS_ROUND], news[STANDS_STEP] = S[ERROR_SEGMENT], S[ERROR_ROUND], S[ERROR_STEP]
        news[WAITS_IN] = S[SEQ]


@njit(**inlined)
def note_completed(state: int) -> None:
    S = words(state)
    C = words(S[COMM])
    if C[BOARD]:
        words(news_of(C[BOARD], C[NODE_RANK]))[COMPLETED] = S[SEQ]


@njit(**inlined)
def differs(mine: int, other: int) -> int:
    """Whether two entries are of different calls."""
    M, O = words(mine), words(other)  # noqa: E741
    for k in range(1, 1 + COMPARED_WORDS):
        if M[k] != O[k]:
            return 1
    return M[CALLED_AT] != O[CALLED_AT]


@njit(**inlined)
def disagrees(state: int) -> int:
    """The number of a call, up to this one, which someone of the node made otherwise than I did, or 0.

    Everything that the others have published is compared, once: who has sent a message has published its call before,
    so whoever took a message that was meant for another call sees it here, at the latest when its own call ends.
    """
    S = words(state)
    C = words(S[COMM])
    compared = words(S[COMM] + 8 * C[COMPARED_AT])
    for rank in range(C[NODE_SIZE]):
        compared[rank] = max(compared[rank], C[ALIKE_UNTIL])
        while rank != C[NODE_RANK] and compared[rank] < S[SEQ]:
            seq = compared[rank] + 1
            entry = entry_of(C[BOARD], rank, seq)
            if load_acquire(entry) != seq:
                break
            if differs(entry_of(C[BOARD], C[NODE_RANK], seq), entry):
                return seq
            compared[rank] = seq
    return 0


@njit(**cold)
def stopped(state: int, now: int) -> int:
    """Whether somebody's communicator is broken, or who has left without making this call, so that it cannot end.

    Who has stopped in a later call has done its part of this one, which ends well, but for messages that an MPI library
    sends no more: they get a moment.
    """
    S = words(state)
    C = words(S[COMM])
    if not C[BOARD]:
        return 0
    outrun = 0
    for rank in range(C[NODE_SIZE]):
        news = news_of(C[BOARD], rank)
        status = load_acquire(news + 8 * BOARD_STATUS) if rank != C[NODE_RANK] else 0
        if status == LEFT:
            if load_acquire(news + 8 * PUBLISHED) < S[SEQ]:
                return 1
        elif status != 0:
            if load_acquire(news + 8 * COMPLETED) < S[SEQ]:
                return 1
            outrun = 1
    if outrun and S[OUTRUN_SINCE] == 0:
        S[OUTRUN_SINCE] = now
    return outrun and now - S[OUTRUN_SINCE] > OUTRUN_NS


@njit("int64(int64)", **native)
def leave(board: int) -> int:
    """How many ranks of the node began to end the job before me."""
    return fetch_add(news_of(board, 0) + 8 * LEAVING, 1)
