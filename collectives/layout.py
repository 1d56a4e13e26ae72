"""The lowered table: one rank's schedule as int64 words, read by the native executor and by the tests' interpreter.

    header  where each section begins, in words, and a few extents
    phases  first and end lane
    lanes   rounds and segments, how many segments are in flight, the message channel
    rounds  first row, number of rows, and which round of the schedule it was (rounds without elements are left out)
    rows    SEND    a place to a peer
            RECV    from a peer into a place, or into the slot's landing memory if it will be folded
            FOLD    terms, rounded once, into a place; a copy is a fold of one term
            FUSED   a node kernel, which does by itself what the phases do that it stands for, or the whole collective
    terms   a fold's operands in order: a received message, or a place
    weights what each term weighs in a mean

A round's rows are posted together, and the round ends when all are done.

A place is `buffer` + offset + segment * stride + slot * slot_stride for the first `full` segments of a pipeline, and
`buffer` + tail_offset + slot * slot_stride for the one after, of tail_length; segments after that have nothing there.
All offsets and lengths are bytes. Rows do not grow with segments.
"""

SEND, RECV, FOLD, FUSED = range(1, 5)  # kinds of rows
MPI, SHARED_MEMORY = 1, 2  # links
# FUNCTION of a FUSED row. Three that stage or copy; single passes over symmetric memory; what these do within a node of
# several, before and after what goes between nodes.
(ONE_SHOT, STAGED, SINGLE_COPY, ALLREDUCE, REDUCE_SCATTER, ALLGATHER, BROADCAST, REDUCE,
 NODE_REDUCE_SCATTER, NODE_ALLGATHER) = range(10)  # fmt: skip
PLAIN, STREAMED, WHOLE = range(3)  # where a RECV lands: its place; two pieces of staging; all of it in landing memory

# Buffers that places name. DATA and OUTPUT are the caller's, INPUT is never written.
BUFFERS = ("data", "input", "output", "scratch", "slot")
SLOT = BUFFERS.index("slot")  # memory of a slot of a pipeline: its scratch, staging and landing

# --- offsets in words ---
(N_PHASES, PHASES, LANES, ROUNDS, ROWS, TERMS, WEIGHTS, INSTANCES, INSTANCE_WORDS, MOST_TERMS,
 SCRATCH_BYTES, SLOT_BYTES, PIECE_BYTES, WORDS) = range(14)  # fmt: skip
HEADER = 16

FIRST_LANE, END_LANE = range(2)
PHASE_WORDS = 2

N_ROUNDS, SEGMENTS, SLOTS, FIRST_ROUND, FIRST_INSTANCE, CHANNEL = range(6)
LANE_WORDS = 8

FIRST_ROW, ROW_COUNT, NUMBER = range(3)
ROUND_WORDS = 4

(KIND, LINK, PEER, BUFFER, OFFSET, STRIDE, LENGTH, FULL,
 TAIL_OFFSET, TAIL_LENGTH, SLOT_STRIDE, LANDING, STAGE, PREVIOUS, PACE, FIFO,
 FIRST_TERM, TERM_COUNT, AFTER, END_AFTER, STREAM, STEP, FUNCTION, KERNEL_PIECE) = range(24)  # fmt: skip
ROW_WORDS = 24
GIVES, OWNER, TAKER, UNIT = PREVIOUS, PACE, AFTER, END_AFTER  # of a FUSED row, what STAGED does: see native/staged.py
CHUNK_BYTES, STANDS_FOR = TAIL_LENGTH, STREAM  # of a kernel within a node of several: my chunk, from OFFSET on; phases
EVERYONE, NOBODY = -1, -2  # as OWNER or TAKER; otherwise one rank

(TERM_ROW, TERM_BUFFER, TERM_OFFSET, TERM_STRIDE, TERM_TAIL_OFFSET, TERM_SLOT_STRIDE) = range(6)
TERM_WORDS = 8
OWN = -1  # TERM_ROW of a term that is a place

# A row that is posted has state. It is the executor's, but how much it takes is known here.
INSTANCE_HEADER, ROW_STATE_WORDS = 8, 16

LANE_BITS, SLOT_BITS = 6, 4  # of a message's tag
MAX_LANES, MAX_SLOTS = 1 << LANE_BITS, 1 << SLOT_BITS
LINE = 64  # bytes of a cache line, to which memory is aligned
