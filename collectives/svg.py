"""Drawings of schedules as SVG: rounds across, ranks down, an arrow for each message, labelled with its span."""

from collections.abc import Sequence
from itertools import groupby
from math import lcm
from typing import NamedTuple
from xml.sax.saxutils import escape

from collectives.draw import PARTS, name
from collectives.proof.rendezvous import Meeting, programs
from collectives.schedule import RECV_REDUCE, Schedule, Span

LEFT, TOP, ACROSS, DOWN, MARGIN = 64, 64, 132, 46, 22  # pixels: before the first round, of a round, of a rank, around
DIGIT = 5.6  # of a label
ALONG = (0.24, 0.34, 0.16, 0.44, 0.54, 0.1, 0.64)  # where on its arrow a label may be, the best place first
FOLDED, MOVED = "#1f4e79", "#b0570f"  # a blue and an orange that also differ where colours do not
STYLE = (
    "text{font:12px Helvetica,Arial,sans-serif;fill:#222}.small{font-size:10px}"
    ".rank{stroke:#ccc;stroke-width:1}.round{stroke:#eee;stroke-width:1}.behind{fill:#fff;fill-opacity:.9}"
    f".folded{{stroke:{FOLDED};stroke-width:1.4}}.moved{{stroke:{MOVED};stroke-width:1.4;stroke-dasharray:5 2}}"
)


class Arrow(NamedTuple):
    """Messages of one round from one rank to another."""

    row: int
    source: int
    to: int
    folded: bool
    label: str


def svg(schedules: Sequence[Schedule], title: str = "") -> str:
    """The schedules of all ranks, of a pipeline one segment. Raises verify.Fault where rounds would never end.

    A message is in the round at which both its ends have come, counted along the longest chain of messages.
    """
    meeting = Meeting(programs(schedules, segments=1))
    turns = [turn for turn, over in meeting if over]
    unit = lcm(1, *(end.denominator for turn in turns for s in turn.steps for end in s.span))
    arrows = drawn(meeting, unit)
    rows, ranks = 1 + max((a.row for a in arrows), default=0), len(schedules)
    width, height = LEFT + rows * ACROSS + MARGIN, TOP + (ranks - 1) * DOWN + 2 * MARGIN
    parts = f"; labels count {PARTS.get(unit, f'{unit}ths')} of the message" * (unit > 1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<style>{STYLE}</style>",
        "<defs>",
        *(marker(kind, colour) for kind, colour in (("folded", FOLDED), ("moved", MOVED))),
        "</defs>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{MARGIN}" y="{MARGIN}">{escape(title)}</text>' if title else "",
        *(f'<text class="small" x="{LEFT + (r + 0.5) * ACROSS:g}" y="{TOP - 20}" text-anchor="middle">round {r}</text>'
          for r in range(rows)),
        *(f'<path class="round" d="M{LEFT + r * ACROSS} {TOP - 12}V{TOP + (ranks - 1) * DOWN + 12}"/>'
          for r in range(rows + 1)),
        *(f'<text x="{MARGIN}" y="{TOP + r * DOWN + 4}">rank {r}</text>'
          f'<path class="rank" d="M{LEFT} {TOP + r * DOWN}H{LEFT + rows * ACROSS}"/>' for r in range(ranks)),
        *(line(a) for a in arrows),
        *(x for _, there in groupby(arrows, key=lambda a: a.row) for x in labels(list(there))),
        f'<text class="small" x="{MARGIN}" y="{height - 8}">solid: folded on arrival; dashed: moved{parts}</text>',
        "</svg>",
    ]  # fmt: skip
    return "\n".join(filter(None, lines)) + "\n"


def drawn(meeting: Meeting, unit: int) -> list[Arrow]:
    """What goes from one rank to another in one round is one arrow."""
    found: dict[tuple[int, int, int, bool], list[Span]] = {}
    for m in meeting.messages:
        row, folded = max(m.out.turn.start, m.back.turn.start), m.back.step.kind == RECV_REDUCE
        found.setdefault((row, m.out.turn.rank, m.back.turn.rank, folded), []).append(m.out.step.span)
    labels = {key: ",".join(name(x, unit).strip("[]") for x in sorted(spans)) for key, spans in found.items()}
    return [Arrow(*key, labels[key]) for key in sorted(labels)]


def ends(a: Arrow) -> tuple[int, int, int, int]:
    """Where an arrow begins, and where it ends."""
    return LEFT + a.row * ACROSS + 8, TOP + a.source * DOWN, LEFT + (a.row + 1) * ACROSS - 8, TOP + a.to * DOWN


def line(a: Arrow) -> str:
    kind, (x, y, end, bottom) = "folded" if a.folded else "moved", ends(a)
    return f'<path class="{kind}" d="M{x} {y}L{end} {bottom}" marker-end="url(#{kind})"/>'


def labels(arrows: list[Arrow]) -> list[str]:
    """Of a round's arrows, in front of all of them: each where it meets no other label, if there is such a place."""
    lines, taken = [], list[tuple[float, float, float]]()
    for a in arrows:
        x, y, end, bottom = ends(a)
        label = a.label if len(a.label) < 16 else a.label[:13] + "..."
        width = DIGIT * len(label) + 3
        places = [(x + part * (end - x), y + part * (bottom - y) + 3.5, width) for part in ALONG]
        middle, base, _ = next((one for one in places if not any(meet(one, other) for other in taken)), places[0])
        taken.append((middle, base, width))
        lines.append(
            f'<rect class="behind" x="{middle - width / 2:.1f}" y="{base - 8.5:.1f}" width="{width:.1f}" height="10"/>'
            f'<text class="small" x="{middle:.1f}" y="{base:.1f}" text-anchor="middle">{escape(label)}</text>'
        )
    return lines


def meet(one: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    """Whether two labels, by middle, base line and width, would lie on each other."""
    return abs(one[0] - other[0]) < (one[2] + other[2]) / 2 and abs(one[1] - other[1]) < 10.5


def marker(kind: str, colour: str) -> str:
    """An arrow's head."""
    return (
        f'<marker id="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
    )
