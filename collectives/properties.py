"""What lowering asks of a schedule."""

from fractions import Fraction

from collectives.extents import overlap
from collectives.schedule import INPUT, OUTPUT, SEND, Schedule, Span, Step


def smallest_part(schedule: Schedule) -> Fraction:
    """The smallest span that a step names: with 1 / that many elements no message is left out."""
    spans = (s.span for phase in schedule.phases for lane in phase.lanes.values() for r in lane.rounds for s in r)
    return min((span.size for span in spans), default=Fraction(1))


def output_may_be_input(schedule: Schedule) -> bool:
    """Whether output and input may be one: no step reads input where an earlier or parallel one has written."""
    writes: list[tuple[int, int, int, Span, Step]] = []
    reads: list[tuple[int, int, int, Span, Step]] = []
    for phase, lanes in enumerate(schedule.phases):
        for number, lane in lanes.lanes.items():
            for index, s in ((i, s) for i, steps in enumerate(lane.rounds) for s in steps):
                if s.kind != SEND and s.buffer == OUTPUT:
                    writes.append((phase, number, index, s.span, s))
                if (s.buffer if s.kind == SEND else s.own) == INPUT:
                    reads.append((phase, number, index, s.span, s))
    return not any(
        overlap(w[3], r[3])
        and (r[0] > w[0] or (r[0] == w[0] and (r[1] != w[1] or r[2] >= w[2])))
        and not (w[:4] == r[:4] and w[4].kind == r[4].kind != SEND)  # my own operand of the very fold that writes
        for w in writes
        for r in reads
    )
