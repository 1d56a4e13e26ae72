"""Words of the executor's own memory: a communicator's block, a plan's state, FIFOs and the node's board.

Numba reads these as constants. The lowered table's words are in collectives/layout.py.
"""

DONE, PENDING, ERROR = range(3)  # what advance returns
IDLE, RUNNING, BROKEN = range(3)  # STATUS
# Why a plan failed (ERROR_CODE), which is also what a rank tells its node (BOARD_STATUS).
TIMEOUT, MPI_FAILED, MISMATCH, PEER_LOST, INTERRUPTED, ABORTED, STOPPED, LEFT, READ_FAILED = range(1, 10)

# --- plan state ---
(STATUS, PHASE, LANES_LEFT, IDLE_PASSES, PIECE, GRAIN, KERNEL, ITEMSIZE,  # the hot line
 TABLE, COMM, INSTANCES_AT, OPERANDS_AT, DEADLINE, TIMEOUT_NS, SELF, SEQ,
 DATA_AT, INPUT_AT, OUTPUT_AT, SCRATCH_AT, SLOT_AT, COPY_BYTES, LOCAL, LOCAL_BYTES,
 FINGERPRINT_0, FINGERPRINT_1, FINGERPRINT_2, FINGERPRINT_3, ERROR_CODE, ERROR_DETAIL, ERROR_LANE, ERROR_ROUND,
 ERROR_STEP, ERROR_PEER, ERROR_SEGMENT, ERROR_KIND, FLAG, CALLS, GATED, REMOTE, REMOTE_BYTES,
 SHARES, CALL_DIGEST, CHAIN_NOW, CALL_TAG, SHARED_BYTES, COPIED_BYTES, SERVED,
 KERNEL_TO_MANY, SITE, OUTRUN_SINCE) = range(51)  # fmt: skip
STATE_HEADER = 56
FINGERPRINT_WORDS = 4
COMPARED_WORDS = 3  # the last one says where the memory lies, in which ranks may differ

# --- a slot of a lane, then the state of each row of a round ---
SEGMENT, ROUND, POSTED, ROWS_NOW, ROWS_AT = range(5)

(R_KIND, R_LINK, FINISHED, PIECES, BASE, BYTES, ROW, ISSUED,
 ARRIVED, PART, REQUEST_0, REQUEST_1, STAGE_AT, FIFO_AT, TICKET, TAG) = range(16)  # fmt: skip

# --- communicator block ---
(MPI_ISEND, MPI_IRECV, MPI_TEST, MPI_COMM, MPI_BYTE, STATUS_IGNORE, SPIN, ARENA,
 NODE_SIZE, NODE_RANK, BOARD, LAST_SEQ, GATE_LIMIT, FIFOS_AT, FIFO_LANES, FIFO_SLOTS,
 COMPARED_AT, PIDS_AT, KERNELS, KERNEL_PIECES, KERNEL_CALLS, ALL_ENDED, CHAIN, TAG_MASK,
 REGIONS, STAMPS, ALIKE_UNTIL) = range(27)  # fmt: skip
COMM_HEADER = 32

# --- FIFO as one of its ends sees it: (in, out) for each (peer on the node, lane, slot of the lane) ---
(FIFO_MEMORY, CURSOR, RESERVED, CREDIT, DEPTH, PAYLOAD, AHEAD) = range(7)
FIFO_WORDS = 8

# --- FIFO memory: a line with the receiver's acknowledgement, then slots of (a line with header, payload) ---
INLINE_BYTES = 48  # a payload of up to this shares the header's line

# --- board: of each rank a line of news, one that says where the call stands that waits, one whose first word counts,
# how many have begun to end the job, on the first rank's, and how often the rank has come to meet the others; then a
# ring of its calls ---
(PUBLISHED, BOARD_STATUS, COMPLETED, WAITS_IN, WAITS_SINCE, PROCESS, BORN, REPORTED) = range(8)
(STANDS_FOR, STANDS_KIND, STANDS_PHASE, STANDS_LANE, STANDS_SEGMENT, STANDS_ROUND, STANDS_STEP, RANK) = range(8, 16)
LEAVING, MEETINGS = 16, 17
BOARD_LINES = 3  # before the ring
HISTORY = 64  # calls remembered; an entry is a line: sequence number, then the fingerprint's words
WINDOW = 48  # how far a rank may run ahead of its node's slowest
OUTRUN_NS = 1_000_000_000  # for what a rank has sent that has stopped in a later call to arrive
ENTRY_WORDS = 8
CAME_AT = 1 + FINGERPRINT_WORDS  # when the rank came to it, where its communicator STAMPS
WAITED_FROM = 2 + FINGERPRINT_WORDS  # since when it waited in it, where it had to
CALLED_AT = 3 + FINGERPRINT_WORDS  # where in the program it was made, as diagnosis.site_of says, or 0
BOARD_BYTES = 64 * (BOARD_LINES + HISTORY)  # of one rank

# --- node kernels: of each rank, lines of counters that only grow, then two halves of staging, used in turn ---
# Lines: pieces that others may fold, may take, have taken; calls ended; where data lie; the last call done in symmetric
# memory; for each half, pieces of a few bytes with those bytes behind.
GIVEN, FOLDED, TAKEN, ENDED, ADDRESSES, PASSED, SHORT = range(7)
CHAIN_OF = 1  # in a line of one_shot, beside its counter: what stands for the call that gives, and all before it
KERNEL_LINES = 8
HALF_BYTES = 1 << 20
KERNEL_BYTES = 64 * KERNEL_LINES + 2 * HALF_BYTES  # of one rank
LAG = 2  # pieces between giving and folding
RING = 2 * LAG + 2  # pieces of staging

# --- what of a rank's memory others access in a single pass (SHARES): its input, its output, its input if they can ---
SHARE_OF_INPUT, SHARE_OF_OUTPUT, OPTIONAL_SHARE = range(1, 4)

# --- directory of symmetric memory: how many regions, words of a row; rows by address; the row of each number ---
REGION_COUNT, REGION_ROW_WORDS, REGION_ROW_AT = range(3)
(R_FROM, R_UNTIL, R_NUMBER, R_ENDED, R_FIRST_BASE) = range(5)  # then where each rank's part is found
OFFSET_BITS = 44  # of a place: a region's number, then an offset in it
