"""One row of a round: posted, then advanced piece by piece until it is finished."""

from numba import njit

from collectives import layout as at
from collectives.native.layout import (
    AHEAD,
    ARRIVED,
    BASE,
    BYTES,
    CALL_TAG,
    COMM,
    DATA_AT,
    FIFO_AT,
    FIFO_LANES,
    FIFO_SLOTS,
    FIFO_WORDS,
    FIFOS_AT,
    FINISHED,
    GRAIN,
    IDLE_PASSES,
    ISSUED,
    ITEMSIZE,
    KERNEL,
    OPERANDS_AT,
    PART,
    PIECE,
    PIECES,
    R_KIND,
    R_LINK,
    RESERVED,
    ROW,
    SEGMENT,
    SLOT_AT,
    STAGE_AT,
    TABLE,
    TAG,
    TICKET,
)
from collectives.native.links import fifo_arrived, fifo_release, fifo_send, mpi_arrived, mpi_issue, piece_bytes
from collectives.native.memory import call_kernel, call_step, copy, inlined, words

IMPATIENT = 100  # idle passes after which a send no longer waits for its pacer


@njit(**inlined)
def row_of(table: int, section: int, index: int, width: int) -> int:
    """Address of a row of a section of the table."""
    return table + 8 * (words(table)[section] + index * width)


@njit(**inlined)
def step_of(instance: int, k: int) -> int:
    """Address of the state of a round's k-th row."""
    return instance + 8 * (at.INSTANCE_HEADER + k * at.ROW_STATE_WORDS)


@njit(**inlined)
def post(state: int, row_at: int, step: int, segment: int, slot: int, channel: int) -> None:
    """Resolve the row for this segment into the step's state, and promise it its places in the FIFO."""
    S, row, s = words(state), words(row_at), words(step)
    if segment < row[at.FULL]:
        n, place = row[at.LENGTH], row[at.OFFSET] + segment * row[at.STRIDE]
    elif segment == row[at.FULL]:
        n, place = row[at.TAIL_LENGTH], row[at.TAIL_OFFSET]
    else:
        n, place = 0, 0
    size, apart = S[PIECE], slot * row[at.SLOT_STRIDE]
    s[R_KIND], s[R_LINK], s[ROW], s[BYTES] = row[at.KIND], row[at.LINK], row_at, n
    s[PIECES] = (n + size - 1) // size if n > size else n > 0
    s[ISSUED] = s[ARRIVED] = s[FINISHED] = s[PART] = s[STAGE_AT] = 0
    if row[at.LANDING] == at.PLAIN:
        s[BASE] = S[DATA_AT + row[at.BUFFER]] + place + apart
    else:
        s[BASE] = S[SLOT_AT] + row[at.STAGE] + apart
        if row[at.LANDING] == at.STREAMED:
            s[STAGE_AT] = s[BASE]
    if row[at.KIND] == at.FOLD:
        return
    s[TAG] = row[at.PEER] << 32 | S[CALL_TAG] | channel << at.SLOT_BITS | slot
    if row[at.LINK] == at.SHARED_MEMORY:
        C = words(S[COMM])
        index = (row[at.FIFO] * C[FIFO_LANES] + channel) * C[FIFO_SLOTS] + slot
        s[FIFO_AT] = S[COMM] + 8 * (C[FIFOS_AT] + (2 * index + (row[at.KIND] == at.SEND)) * FIFO_WORDS)
        F = words(s[FIFO_AT])
        s[TICKET] = F[RESERVED]
        F[RESERVED] += s[PIECES]


@njit(**inlined)
def must_wait_for_sends(row_at: int, instance: int, done: int) -> int:
    """Sends of the round that have not yet read what the fold's next piece overwrites."""
    row = words(row_at)
    for k in range(row[at.AFTER], row[at.END_AFTER]):
        s = words(step_of(instance, k))
        if s[FINISHED] <= done and s[FINISHED] < s[PIECES]:
            return 1
        if row[at.STREAM] == 0 and s[FINISHED] < s[PIECES]:
            return 1
    return 0


@njit(**inlined)
def operand(state: int, term_at: int, instance: int, fold_row: int, slot: int, done: int, size: int) -> int:
    """Address of piece `done` of a term; 0 where it must be waited for, negative on error."""
    S, term, row = words(state), words(term_at), words(fold_row)
    if term[at.TERM_ROW] == at.OWN:
        segment = words(instance)[SEGMENT]
        place = term[at.TERM_TAIL_OFFSET]
        if segment < row[at.FULL]:
            place = term[at.TERM_OFFSET] + segment * term[at.TERM_STRIDE]
        return S[DATA_AT + term[at.TERM_BUFFER]] + place + slot * term[at.TERM_SLOT_STRIDE] + done * size
    source = step_of(instance, term[at.TERM_ROW])
    s = words(source)
    if row[at.STREAM] == 0:
        return s[BASE] + done * size if s[FINISHED] == s[PIECES] else 0
    if s[R_LINK] == at.SHARED_MEMORY:
        return fifo_arrived(source, size)
    arrived = mpi_arrived(state, source)
    return s[STAGE_AT] + (done & 1) * size if arrived > 0 else arrived


@njit(**inlined)
def fold(state: int, step: int, instance: int, slot: int) -> int:
    """One n-ary reduction of a piece (of a grain of it, where MPI wants to be tested between), from where it lies."""
    S, s = words(state), words(step)
    row, size, done, part = words(s[ROW]), S[PIECE], s[FINISHED], s[PART]
    if must_wait_for_sends(s[ROW], instance, done):
        return 0
    operands = words(state + 8 * S[OPERANDS_AT])
    terms = row_of(S[TABLE], at.TERMS, row[at.FIRST_TERM], at.TERM_WORDS)
    for j in range(row[at.TERM_COUNT]):
        address = operand(state, terms + 8 * at.TERM_WORDS * j, instance, s[ROW], slot, done, size)
        if address <= 0:
            return address
        operands[j] = address + part
    n = piece_bytes(step, size)
    grain = n - part if row[at.LINK] == at.SHARED_MEMORY else min(S[GRAIN], n - part)
    weights = S[TABLE] + 8 * (words(S[TABLE])[at.WEIGHTS] + row[at.FIRST_TERM])
    target = s[BASE] + done * size + part
    call_kernel(S[KERNEL], target, state + 8 * S[OPERANDS_AT], row[at.TERM_COUNT], grain // S[ITEMSIZE], weights)
    if part + grain < n:
        s[PART] = part + grain
        return 1
    s[PART] = 0
    s[FINISHED] += 1
    for j in range(row[at.TERM_COUNT] if row[at.STREAM] else 0):
        source_row = words(terms + 8 * at.TERM_WORDS * j)[at.TERM_ROW]
        if source_row != at.OWN:
            source = step_of(instance, source_row)
            if words(source)[R_LINK] == at.SHARED_MEMORY:
                fifo_release(source)
            else:
                words(source)[FINISHED] += 1
                issued = mpi_issue(state, source)
                if issued < 0:
                    return issued
    return 1


@njit(**inlined)
def advance_by_mpi(state: int, step: int) -> int:
    s = words(step)
    arrived = mpi_arrived(state, step)
    if arrived > 0:
        s[FINISHED] += 1
    elif arrived < 0:
        return arrived
    issued = mpi_issue(state, step)
    return arrived if issued > 0 else issued


@njit(**inlined)
def advance_fifo_send(state: int, step: int) -> int:
    """As many pieces as fit, but not far ahead of my own receive: a preference that lapses when idle."""
    S, s = words(state), words(step)
    pace = words(s[ROW])[at.PACE]
    limit, sent = s[PIECES], 0
    if pace and S[IDLE_PASSES] < IMPATIENT:
        other = words(step + 8 * at.ROW_STATE_WORDS * pace)
        if other[FINISHED] < other[PIECES]:
            limit = min(limit, other[FINISHED] + words(s[FIFO_AT])[AHEAD])
    while s[FINISHED] < limit and fifo_send(step, S[PIECE]):
        sent += 1
    return sent


@njit(**inlined)
def advance_row(state: int, step: int, instance: int, slot: int) -> int:
    """How much the row has moved: 0 where it must wait, negative on error."""
    S, s = words(state), words(step)
    kind, size = s[R_KIND], S[PIECE]
    if kind == at.FOLD:
        return fold(state, step, instance, slot)
    if kind == at.FUSED:
        return call_step(words(s[ROW])[at.FUNCTION], state, s[ROW], step)
    if kind == at.RECV and words(s[ROW])[at.LANDING] == at.STREAMED:
        return 0  # its fold takes the pieces
    if s[R_LINK] == at.MPI:
        return advance_by_mpi(state, step)
    if kind == at.SEND:
        return advance_fifo_send(state, step)
    address = fifo_arrived(step, size)
    if address == 0:
        return 0
    copy(s[BASE] + s[FINISHED] * size, address, piece_bytes(step, size))
    fifo_release(step)
    return 1
