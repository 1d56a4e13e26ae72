"""The resumable executor: advance(plans, n, budget) -> DONE | PENDING | ERROR.

All state lies in the plans' memory, so a call may return at any time and go on later, from any thread.
"""

from numba import njit

from collectives import layout as at
from collectives.native.board import disagrees, note_completed, note_standing, publish, stopped
from collectives.native.layout import (
    ALIKE_UNTIL,
    ARENA,
    BROKEN,
    CALL_DIGEST,
    CALL_TAG,
    CALLS,
    CHAIN,
    CHAIN_NOW,
    COMM,
    COPY_BYTES,
    DATA_AT,
    DEADLINE,
    DONE,
    ERROR,
    ERROR_CODE,
    ERROR_DETAIL,
    ERROR_KIND,
    ERROR_LANE,
    ERROR_PEER,
    ERROR_ROUND,
    ERROR_SEGMENT,
    ERROR_STEP,
    FINISHED,
    GATED,
    IDLE,
    IDLE_PASSES,
    INPUT_AT,
    INSTANCES_AT,
    LANES_LEFT,
    LAST_SEQ,
    MISMATCH,
    OUTPUT_AT,
    OUTRUN_SINCE,
    PENDING,
    PHASE,
    PIECES,
    POSTED,
    R_KIND,
    R_LINK,
    ROUND,
    ROW,
    ROWS_AT,
    ROWS_NOW,
    RUNNING,
    SCRATCH_AT,
    SEGMENT,
    SELF,
    SEQ,
    SHARES,
    SITE,
    SLOT_AT,
    SPIN,
    STATUS,
    STOPPED,
    TABLE,
    TAG_MASK,
    TIMEOUT,
    TIMEOUT_NS,
)
from collectives.native.links import mpi_issue
from collectives.native.memory import cold, copy, inlined, native, now_ns, pause, sched_yield, words
from collectives.native.regions import locate
from collectives.native.steps import advance_row, post, row_of, step_of


# ---------------------------------------------------------------- one slot of a lane
@njit(**inlined)
def instance_of(state: int, index: int) -> int:
    S = words(state)
    return state + 8 * (S[INSTANCES_AT] + index * words(S[TABLE])[at.INSTANCE_WORDS])


@njit(**inlined)
def post_round(state: int, lane_row: int, instance: int, slot: int) -> int:
    S, L, I = words(state), words(lane_row), words(instance)  # noqa: E741
    R = words(row_of(S[TABLE], at.ROUNDS, L[at.FIRST_ROUND] + I[ROUND], at.ROUND_WORDS))
    I[POSTED], I[ROWS_NOW] = 1, R[at.ROW_COUNT]
    I[ROWS_AT] = row_of(S[TABLE], at.ROWS, R[at.FIRST_ROW], at.ROW_WORDS)
    for k in range(I[ROWS_NOW]):
        step = step_of(instance, k)
        post(state, I[ROWS_AT] + 8 * k * at.ROW_WORDS, step, I[SEGMENT], slot, L[at.CHANNEL])
        s = words(step)
        if s[R_LINK] == at.MPI and s[R_KIND] != at.FOLD:
            issued = mpi_issue(state, step)
            if issued < 0:
                return issued
    return 1


@njit(**inlined)
def advance_slot(state: int, lane_row: int, instance: int, slot: int) -> int:
    L, I, moved = words(lane_row), words(instance), 0  # noqa: E741
    while I[SEGMENT] < L[at.SEGMENTS]:
        if not I[POSTED]:
            posted = post_round(state, lane_row, instance, slot)
            if posted < 0:
                return posted
        waiting = 0
        for k in range(I[ROWS_NOW]):
            step = step_of(instance, k)
            s = words(step)
            if s[FINISHED] < s[PIECES]:
                m = advance_row(state, step, instance, slot)
                if m < 0:
                    return m
                moved += m
                waiting += s[FINISHED] < s[PIECES]
        if waiting:
            for k in range(I[ROWS_NOW]):  # a fold may have finished what was visited before it
                s = words(step_of(instance, k))
                if s[FINISHED] < s[PIECES]:
                    return moved
        moved += 1
        I[POSTED] = 0
        I[ROUND] += 1
        if I[ROUND] == L[at.N_ROUNDS]:
            I[ROUND] = 0
            I[SEGMENT] += L[at.SLOTS]
            if I[SEGMENT] >= L[at.SEGMENTS]:
                words(state)[LANES_LEFT] -= 1
    return moved


# ---------------------------------------------------------------- phases
@njit(**inlined)
def start_phase(state: int) -> None:
    S = words(state)
    P = words(row_of(S[TABLE], at.PHASES, S[PHASE], at.PHASE_WORDS))
    S[LANES_LEFT] = 0
    for lane in range(P[at.FIRST_LANE], P[at.END_LANE]):
        L = words(row_of(S[TABLE], at.LANES, lane, at.LANE_WORDS))
        for slot in range(L[at.SLOTS]):
            I = words(instance_of(state, L[at.FIRST_INSTANCE] + slot))  # noqa: E741
            I[SEGMENT], I[ROUND], I[POSTED], I[ROWS_NOW] = slot, 0, 0, 0
            S[LANES_LEFT] += slot < L[at.SEGMENTS]


@njit(**inlined)
def one_pass(state: int) -> int:
    """Visit every slot of every lane of the phase once: how much moved, or negative."""
    S = words(state)
    P = words(row_of(S[TABLE], at.PHASES, S[PHASE], at.PHASE_WORDS))
    moved = 0
    for lane in range(P[at.FIRST_LANE], P[at.END_LANE]):
        lane_row = row_of(S[TABLE], at.LANES, lane, at.LANE_WORDS)
        L = words(lane_row)
        for slot in range(L[at.SLOTS]):
            m = advance_slot(state, lane_row, instance_of(state, L[at.FIRST_INSTANCE] + slot), slot)
            if m < 0:
                return m
            moved += m
    return moved


@njit(**cold)
def note_waiting(state: int) -> None:
    """Note the first step that waits, a receive rather than a send."""
    S = words(state)
    S[ERROR_LANE], S[ERROR_PEER] = -1, -1
    if S[PHASE] >= words(S[TABLE])[at.N_PHASES] or S[GATED]:
        return
    P = words(row_of(S[TABLE], at.PHASES, S[PHASE], at.PHASE_WORDS))
    for sends in range(2):
        for lane in range(P[at.FIRST_LANE], P[at.END_LANE]):
            L = words(row_of(S[TABLE], at.LANES, lane, at.LANE_WORDS))
            for slot in range(L[at.SLOTS]):
                instance = instance_of(state, L[at.FIRST_INSTANCE] + slot)
                I = words(instance)  # noqa: E741
                for k in range(I[ROWS_NOW] if I[POSTED] and I[SEGMENT] < L[at.SEGMENTS] else 0):
                    s = words(step_of(instance, k))
                    waits = s[FINISHED] < s[PIECES] and s[R_KIND] != at.FOLD
                    if waits and S[ERROR_LANE] < 0 and (s[R_KIND] == at.SEND) == sends:
                        row = words(s[ROW])
                        R = words(row_of(S[TABLE], at.ROUNDS, L[at.FIRST_ROUND] + I[ROUND], at.ROUND_WORDS))
                        S[ERROR_LANE], S[ERROR_ROUND] = L[at.CHANNEL], R[at.NUMBER]
                        S[ERROR_STEP], S[ERROR_SEGMENT] = row[at.STEP], I[SEGMENT]
                        S[ERROR_PEER], S[ERROR_KIND] = row[at.PEER], s[R_KIND]


@njit(**cold)
def fail(state: int, code: int) -> None:
    S = words(state)
    note_waiting(state)
    note_standing(state)
    S[STATUS], S[ERROR_CODE] = BROKEN, code


@njit(**inlined)
def agreed(state: int) -> int:
    """Whether all calls that others have published are mine too; if not, this one has failed."""
    S = words(state)
    if words(S[COMM])[ALIKE_UNTIL] == S[SEQ]:
        return 1
    seq = disagrees(state)
    if seq:
        S[ERROR_DETAIL] = seq
        fail(state, MISMATCH)
    return seq == 0


@njit(**inlined)
def turn(state: int) -> int:
    """One pass over a running plan, and the end of its phase: how much moved."""
    S = words(state)
    if S[GATED] and not publish(state):
        return 0
    moved = one_pass(state) if S[PHASE] < words(S[TABLE])[at.N_PHASES] else 0
    if moved < 0:
        fail(state, -moved)
    elif S[LANES_LEFT] == 0:
        S[PHASE] += 1
        moved += 1
        if S[PHASE] < words(S[TABLE])[at.N_PHASES]:
            start_phase(state)
        elif not agreed(state):
            return moved
        else:
            S[STATUS] = IDLE
            S[CALLS] += 1
            note_completed(state)
    return moved


@njit(**cold)
def look_around(state: int, now: int) -> None:
    """What a plan that waits must see: its deadline, ranks that disagree, ranks that have given up."""
    S = words(state)
    if S[DEADLINE] == 0:
        S[DEADLINE], S[OUTRUN_SINCE] = now + S[TIMEOUT_NS], 0
    if not S[GATED] and not agreed(state):
        return
    if stopped(state, now):
        fail(state, STOPPED)
    elif now > S[DEADLINE]:
        fail(state, TIMEOUT)
    else:
        note_waiting(state)
        note_standing(state)


@njit("int64(int64,int64,int64)", **native)
def advance(plans_at: int, n_plans: int, budget_ns: int) -> int:
    """Advance n plans in turn until one of them ends, or the budget is spent. plans_at: addresses of their states."""
    plans = words(plans_at)
    idle, ticks, stop = 0, 0, 0
    while True:
        moved, running, ended, broken = 0, 0, 0, 0
        for i in range(n_plans):
            S = words(plans[i])
            if S[STATUS] == RUNNING:
                S[IDLE_PASSES] = idle
                moved += turn(plans[i])
                ended += S[STATUS] != RUNNING
            running += S[STATUS] == RUNNING
            broken += S[STATUS] == BROKEN
        if ended or running == 0:
            return ERROR if broken else DONE
        idle = 0 if moved else idle + 1
        if 0 < idle <= words(words(plans[0])[COMM])[SPIN]:
            ticks += 1
            pause()
        else:
            ticks += 16
            if idle:
                sched_yield()
        if ticks >= 256:  # the clock is read only by calls that take long
            ticks = 0
            now = now_ns()
            for i in range(n_plans):
                if words(plans[i])[STATUS] == RUNNING:
                    look_around(plans[i], now)
            if stop == 0:
                stop = now + budget_ns
            if now > stop:
                return PENDING


@njit("void(int64,int64,int64)", **native)
def start(state: int, source: int, target: int) -> None:
    """Begin a call on the buffers at `source` and `target` (the same where it is in place)."""
    S = words(state)
    C = words(S[COMM])
    C[LAST_SEQ] += 1
    # Messages of ranks that have not made the same calls so far do not meet: both wait, and find out why.
    C[CHAIN] = (C[CHAIN] * 0x5BD1E995 + S[CALL_DIGEST] + S[SITE]) & 0x7FFFFFFFFFFF
    S[CHAIN_NOW], S[CALL_TAG] = C[CHAIN], (C[CHAIN] & C[TAG_MASK]) << at.LANE_BITS + at.SLOT_BITS
    S[SEQ], S[STATUS], S[PHASE], S[DEADLINE], S[GATED] = C[LAST_SEQ], RUNNING, 0, 0, 1
    S[DATA_AT], S[INPUT_AT], S[OUTPUT_AT] = target, source, target
    S[SCRATCH_AT], S[SLOT_AT] = C[ARENA], C[ARENA] + words(S[TABLE])[at.SCRATCH_BYTES]
    S[LANES_LEFT] = 0
    placed = locate(state) if S[SHARES] else 0
    if source != target and S[COPY_BYTES] and not placed:
        copy(target, source, S[COPY_BYTES])
    if S[PHASE] < words(S[TABLE])[at.N_PHASES]:
        start_phase(state)


@njit("int64(int64,int64,int64)", **native)
def run(state: int, source: int, target: int) -> int:
    """start and the first advance in one call from Python."""
    start(state, source, target)
    return advance(state + 8 * SELF, 1, 2_000_000)
