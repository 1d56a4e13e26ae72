"""A heat map: how many times the fastest time each algorithm takes at each size, and what the table chooses there."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from collectives.tables.table import Rule
from tuner import units
from tuner.statistics import Interval

FARTHEST = 8.0  # times the fastest; the colour of all that is slower
LIGHT = 2.0  # from so many times on the cell is dark, and its number light
ROW = 0.24  # inches of an algorithm
MANY = 24  # sizes whose cells have room for a number

Points = Mapping[int, Interval]


def height(found: Mapping[str, Points]) -> float:
    """Inches that the map needs."""
    return 1.0 + ROW * len(found)


def heat(panel: Any, found: Mapping[str, Points], rules: Sequence[Rule], named: Mapping[str, str]) -> None:
    """Rows are algorithms, those of the rules first, then by their times; `named` rows, what is no algorithm, last."""
    own = [name for name in found if name not in named] or list(found)
    sizes = sorted({nbytes for name in own for nbytes in found[name]})
    best = {n: min(found[name][n].median for name in own if n in found[name]) for n in sizes}
    over = {name: {n: points[n].median / best[n] for n in sizes if n in points} for name, points in found.items()}
    chosen = {rule.algorithm for rule in rules}
    ordered = sorted(
        own, key=lambda name: (name not in chosen, sum(map(math.log, over[name].values())) / len(over[name]))
    )
    ordered += [name for name in named if name in found and name not in own]
    cells = [[math.log2(over[name][n]) if n in over[name] else math.nan for n in sizes] for name in ordered]
    panel.imshow(cells, aspect="auto", cmap="cividis_r", vmin=0, vmax=math.log2(FARTHEST), interpolation="nearest")
    for row, name in enumerate(ordered):
        for column, nbytes in enumerate(sizes):
            if nbytes in over[name]:
                cell(panel, row, column, over[name][nbytes], len(sizes) <= MANY)
    for rule in rules:
        end = math.inf if rule.max_bytes is None else rule.max_bytes
        served = [column for column, nbytes in enumerate(sizes) if rule.min_bytes <= nbytes <= end]
        if served and rule.algorithm in ordered:
            frame(panel, ordered.index(rule.algorithm), served[0], served[-1])
    panel.set_yticks(range(len(ordered)), [named.get(name, name) for name in ordered], fontsize=8)
    panel.set_xticks(range(len(sizes)), [units.size(nbytes) for nbytes in sizes], rotation=45, ha="right", fontsize=8)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    panel.set_title("times as long as the fastest algorithm; framed: the table's choice", loc="left", fontsize=9)


def cell(panel: Any, row: int, column: int, times: float, numbered: bool) -> None:
    if numbered:
        text = f"{times:.2f}" if times < 1.995 else f"{times:.1f}" if times < 9.95 else f"{times:.0f}"
        colour = "white" if times > LIGHT else "black"
        panel.text(column, row, text, ha="center", va="center", fontsize=6, color=colour)


def frame(panel: Any, row: int, first: int, last: int) -> None:
    """Around the cells of a row that a rule serves."""
    left, right, top, bottom = first - 0.5, last + 0.5, row - 0.5, row + 0.5
    panel.plot([left, right, right, left, left], [top, top, bottom, bottom, top], color="#D55E00", linewidth=1.6,
               solid_joinstyle="miter", clip_on=False)  # fmt: skip
