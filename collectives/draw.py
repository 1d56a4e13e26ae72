"""Pictures of schedules, as text: rows are rounds, columns are ranks, and both ends of a message are in one row."""

from collections.abc import Iterable, Sequence
from itertools import groupby, zip_longest
from math import lcm

from collectives.proof.rendezvous import Fault, Meeting, programs
from collectives.schedule import COPY, RECV_REDUCE, SEND, WHOLE, Schedule, Span

LEGEND = "[x] > r  to rank r      [x] < r  from rank r      [x] + r  from rank r, and folded"
COPIES = "      [x] = b  copied from buffer b"
PARTS = {2: "halves", 3: "thirds", 4: "quarters"}


def text(schedules: Sequence[Schedule], title: str = "") -> str:
    """The schedules of all ranks. Of a pipeline, one segment.

    A message is in the row of the round at which both its ends have come, counted along the longest chain of messages.
    Raises verify.Fault where rounds would never end.
    """
    meeting = Meeting(programs(schedules, segments=1))
    turns = [turn for turn, over in meeting if over]
    unit = lcm(*(end.denominator for turn in turns for s in turn.steps for end in s.span))
    cells: dict[tuple[int, int], list[tuple[str, Span, int | str]]] = {}  # (row, rank): sign, span, peer
    for m in meeting.messages:
        row, sign = max(m.out.turn.start, m.back.turn.start), "+" if m.back.step.kind == RECV_REDUCE else "<"
        cells.setdefault((row, m.out.turn.rank), []).append((">", m.out.step.span, m.back.turn.rank))
        cells.setdefault((row, m.back.turn.rank), []).append((sign, m.back.step.span, m.out.turn.rank))
    for turn in turns:
        for s in (s for s in turn.steps if s.kind == COPY):
            cells.setdefault((turn.start, turn.rank), []).append(("=", s.span, s.own or s.buffer))

    columns = range(len(schedules))
    table = [["", *(f"rank {rank}" for rank in columns)]]
    for row in range(1 + max((row for row, _ in cells), default=-1)):
        lines = [cell(cells.get((row, rank), []), unit, len(schedules) - 1) for rank in columns]
        aside = [f"round {row}"]
        table += map(list, zip_longest(aside, *lines, fillvalue=""))
    width = [2 + max(map(len, column)) for column in zip(*table, strict=True)]
    lanes = [lane for schedule in schedules for phase in schedule.phases for lane in phase.lanes.values() if lane.cells]
    head = [
        title,
        LEGEND + COPIES * any(s.kind == COPY for turn in turns for s in turn.steps),
        f"x counts {PARTS.get(unit, f'{unit}ths')} of the message" * (unit > 1),
        f"a pipeline of {lanes[0].slots} slots: one segment is drawn" if lanes else "",
        "" if turns else "nothing to do",
    ]
    body = ["".join(map(str.ljust, line, width)).rstrip() for line in table]
    return "\n".join([*filter(None, head), "", *body, ""])


def exchange(fault: Fault) -> str:
    """The rounds in which a fault shows, side by side; an arrow marks the steps that it is about."""
    turns = fault.turns[:4]
    unit = lcm(1, *(end.denominator for turn in turns for s in turn.steps for end in s.span))
    columns = []
    for turn in turns:
        lines = [f"rank {turn.rank}, lane {turn.channel[0]}, round {turn.number}"]
        for s in turn.steps:
            sign = {SEND: ">", COPY: "=", RECV_REDUCE: "+"}.get(s.kind, "<")
            mark = "   <--" * any(s is wrong for wrong in fault.steps)
            lines.append(f"{s.buffer} {name(s.span, unit)} {sign} {s.own if s.peer is None else s.peer}{mark}")
        columns.append(lines)
    widths = [max(map(len, lines)) for lines in columns]
    body = (map(str.ljust, line, widths) for line in zip_longest(*columns, fillvalue=""))
    return "\n".join("  ".join(line).rstrip() for line in body)


def cell(found: Iterable[tuple[str, Span, int | str]], unit: int, others: int) -> list[str]:
    """A line for each sign and span; the ranks that share them are put together."""
    order = sorted(found, key=lambda x: (">+<=".index(x[0]), x[1], x[2]))
    return [
        f"{name(span, unit)} {sign} {ranks([peer for _, _, peer in same], others)}"
        for (sign, span), same in groupby(order, key=lambda x: x[:2])
    ]


def name(span: Span, unit: int) -> str:
    """ "[all]", or the parts of the message that it covers, counted from 0: "[2]", "[0-3]"."""
    first, last = int(span.lo * unit), int(span.hi * unit) - 1
    return "[all]" if span == WHOLE else f"[{first}]" if first == last else f"[{first}-{last}]"


def ranks(found: Sequence[int | str], others: int) -> str:
    """ "0-2,5" for ranks 0, 1, 2 and 5; "others" for all of three or more."""
    numbers = [x for x in found if isinstance(x, int)]
    if len(numbers) == others > 2:
        return "others"
    runs = [[x for _, x in run] for _, run in groupby(enumerate(numbers), key=lambda x: x[1] - x[0])]
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    return ",".join([*parts, *(x for x in found if isinstance(x, str))])
