"""Schedules lowered for a device: the CPU's tables, with every message by a FIFO of the receiver's window."""

from collections.abc import Sequence
from dataclasses import dataclass

from collectives import layout as at
from collectives.cuda import layout as device
from collectives.errors import UnsupportedError
from collectives.extents import aligned
from collectives.plan import Target, lower
from collectives.plans import bound_of, holds
from collectives.schedule import Schedule

ELEMENTWISE = ("allreduce", "broadcast")  # collectives of which parts of a message are calls of their own


@dataclass(frozen=True)
class Lowered:
    """The table of one part of a message, and what a launch must know of it."""

    words: tuple[int, ...]
    blocks: int  # that run at once: the most slots of a phase's lanes
    scratch_bytes: int
    slot_bytes: int


def channels(schedules: Sequence[Schedule]) -> tuple[int, int]:
    """Lanes and slots that ranks' schedules have at most: together they number the FIFOs, on all ranks alike."""
    lanes = [
        (number, lane.slots) for each in schedules for phase in each.phases for number, lane in phase.lanes.items()
    ]
    return 1 + max((number for number, _ in lanes), default=0), max((slots for _, slots in lanes), default=1)


def parts_of(collective: str, wanted: int, lanes: int, slots: int, count: int, blocks: int = device.MAX_BLOCKS) -> int:
    """How many parts a message has: as many as wanted, as long as blocks and elements last. The same on all ranks.

    UnsupportedError where not even one part has a block for each slot of each lane.
    """
    blocks = min(blocks, device.MAX_BLOCKS)
    if lanes * slots > blocks:
        raise UnsupportedError(
            f"the schedule needs {lanes} lanes of {slots} slots, and {blocks} blocks can be resident: pass fewer slots"
        )
    most = blocks // (lanes * slots) if collective in ELEMENTWISE else 1
    return max(1, min(wanted, most, count))


def part_counts(count: int, parts: int, itemsize: int) -> tuple[int, int]:
    """Elements of each part but the last, whose bytes are a multiple of 16, and of the last."""
    pack = max(1, 16 // itemsize)
    each = -(-count // (parts * pack)) * pack
    return each, count - each * (parts - 1)


def lowered(
    schedule: Schedule,
    collective: str,
    ranks: int,
    rank: int,
    count: int,
    itemsize: int,
    *,
    piece_bytes: int,
    segment_bytes: int | None = None,
    weights: Sequence[int] | None = None,
) -> Lowered:
    """The table of `count` elements. UnsupportedError where a round has more rows than a block can keep."""
    bound = bound_of(collective, count, ranks, max(1, at.LINE // itemsize))
    table = lower(
        schedule,
        Target(
            itemsize, bound, holds(collective, ranks, rank), link=lambda _: at.SHARED_MEMORY, fifo_lanes=at.MAX_LANES,
            fifo_slots=at.MAX_SLOTS, segment_bytes=segment_bytes, piece_bytes=piece_bytes, weights=weights,
        ),
    )  # fmt: skip
    w = table.words
    rows = max(
        (w[i + at.ROW_COUNT] for i in range(w[at.ROUNDS], w[at.ROWS] - at.ROUND_WORDS + 1, at.ROUND_WORDS)), default=0
    )
    if rows > device.MAX_ROWS or w[at.MOST_TERMS] > device.MAX_RANKS:
        raise UnsupportedError(
            f"a round of this {collective} has {rows} rows, and a device's block keeps {device.MAX_ROWS}; another "
            "algorithm would serve"
        )
    blocks = 1
    for phase in range(w[at.N_PHASES]):
        first, end = w[w[at.PHASES] + phase * at.PHASE_WORDS :][:2]
        slots = (w[w[at.LANES] + lane * at.LANE_WORDS + at.SLOTS] for lane in range(first, end))
        blocks = max(blocks, sum(slots))
    return Lowered(tuple(map(int, w)), blocks, aligned(w[at.SCRATCH_BYTES]), aligned(w[at.SLOT_BYTES]))
