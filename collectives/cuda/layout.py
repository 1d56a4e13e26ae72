"""What the host and the kernels both know: the shape of a window, words of structures.

Kernels get them as constants; window.cuh says what lies in a window, and why.
"""

MAX_RANKS, MAX_BLOCKS = 16, 64  # of a group; of a kernel, whose blocks all must be resident
MAX_ROWS = 64  # of a round of a schedule that runs on a device
MOST_THREADS = 512  # of a block
LINE_KINDS, LINE_BYTES = 4, 128
FIFO_DEPTH = 4  # pieces
LOOKS = 256  # of a waiting thread at its line, between two at the clock
TIMED_OUT, STOPPED = 1, 2  # why a kernel gave up

COUNTER_BYTES = 16 << 10  # of a window, at its beginning; Counters are smaller
LINES_AT = COUNTER_BYTES
STAGING_AT = LINES_AT + LINE_KINDS * MAX_BLOCKS * MAX_RANKS * LINE_BYTES

KINDS = ("given", "folded", "sent", "freed")  # of lines, in the order of their numbers
REPORT_WORDS = 8
(R_CODE, R_KIND, R_BLOCK, R_PEER, R_WANTED, R_SEEN, R_STOP) = range(7)  # of a Report, as uint32

INPUT_CHUNK, OUTPUT_CHUNK = 1, 2  # bits of Call.packed
EVERYONE, NOBODY = -1, -2
