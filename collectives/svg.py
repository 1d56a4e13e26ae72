"""Drawings of schedules as SVG: rounds across, ranks down, an arrow for each message, labelled with its span."""

from collections.abc import Sequence
from itertools import groupby
from math import lcm
from typing import NamedTuple
from xml.sax.saxutils import escape

from collectives.draw import PARTS, name
from collectives.rendezvous import Meeting, programs
from collectives.schedule import RECV_REDUCE, Schedule, Span

LEFT, TOP, ACROSS, DOWN, MARGIN = 64, 64, 132, 46, 22  # pixels: before the first round, of a round, of a rank, around
FOLDED, MOVED = "#1f4e79", "#b0570f"  # a blue and an orange that also differ where colours do not
STYLE = (
    "text{font:12px Helvetica,Arial,sans-serif;fill:#222}.small{font-size:10px;paint-order:stroke;stroke:#fff;"
    "stroke-width:3px;stroke-linejoin:round}.rank{stroke:#ccc;stroke-width:1}.round{stroke:#eee;stroke-width:1}"
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
        *(line for _, leaving in groupby(arrows, key=lambda a: a[:2]) for line in draw(list(leaving))),
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


def draw(leaving: list[Arrow]) -> list[str]:
    """The arrows that leave a rank in a round; their labels one after the other, so that they do not meet."""
    lines = []
    for place, a in enumerate(leaving):
        x, y = LEFT + a.row * ACROSS + 8, TOP + a.source * DOWN
        end, bottom = LEFT + (a.row + 1) * ACROSS - 8, TOP + a.to * DOWN
        part = 0.16 + 0.34 * place / max(1, len(leaving) - 1) if len(leaving) > 1 else 0.24
        kind, label = "folded" if a.folded else "moved", a.label if len(a.label) < 16 else a.label[:13] + "..."
        lines.append(f'<path class="{kind}" d="M{x} {y}L{end} {bottom}" marker-end="url(#{kind})"/>')
        where = f'x="{x + part * (end - x):.1f}" y="{y + part * (bottom - y) + 3.5:.1f}"'
        lines.append(f'<text class="small" {where} text-anchor="middle">{escape(label)}</text>')
    return lines


def marker(kind: str, colour: str) -> str:
    """An arrow's head."""
    return (
        f'<marker id="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
    )
