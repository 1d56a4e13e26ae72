"""What the simulator foresees, drawn: times by size on one topology, or the best algorithm on each of several."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from tuner import units
from tuner.plot import COLOURS, MARKS, spread


def curves(collective: str, rows: Sequence[Any], best: Sequence[Any], output: Path) -> None:
    """Each algorithm's least time by size, with its interval where that is known, and the best one's name."""
    figure, panel = sheet(9.5, 5.5)
    names = sorted({row.found.algorithm for row in rows}, key=lambda name: (not wins(name, best), name))
    for place, name in enumerate(names):
        mine = [row for row in rows if row.found.algorithm == name]
        least = {n: min((row.found for row in mine if row.bytes == n), key=lambda found: found.us)
                 for n in sorted({row.bytes for row in mine})}  # fmt: skip
        colour, mark = COLOURS[place % len(COLOURS)], MARKS[place % len(MARKS)]
        strong = wins(name, best)
        panel.plot(list(least), [found.us for found in least.values()], label=name, color=colour, marker=mark,
                   markersize=4, linewidth=1.8 if strong else 0.9, alpha=1.0 if strong else 0.6)  # fmt: skip
        known = {n: found for n, found in least.items() if found.low_us is not None}
        if known and strong:
            panel.fill_between(list(known), [f.low_us for f in known.values()], [f.high_us for f in known.values()],
                               color=colour, alpha=0.12, linewidth=0)  # fmt: skip
    sizes = sorted({row.bytes for row in rows})
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.xaxis.set_major_locator(FixedLocator(spread(sizes)))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: units.size(int(nbytes))))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda us, _: units.time(us)))
    panel.grid(True, which="major", color="0.9", linewidth=0.6)
    panel.set_xlabel("bytes of the message")
    panel.set_ylabel("predicted time")
    panel.set_title(f"{collective} on {best[0].shape} ranks, foreseen", loc="left")
    panel.legend(fontsize=8, frameon=False, ncols=2)
    figure.savefig(output, dpi=150)


def regions(collective: str, best: Sequence[Any], output: Path) -> None:
    """A cell for each topology and size, coloured and named after the best algorithm."""
    shapes = list(dict.fromkeys(row.shape for row in best))
    sizes = sorted({row.bytes for row in best})
    names = list(dict.fromkeys(row.found.algorithm for row in best))
    figure, panel = sheet(2 + 0.9 * len(sizes), 1.6 + 0.48 * len(shapes))
    for row in best:
        x, y = sizes.index(row.bytes), shapes.index(row.shape)
        colour = COLOURS[names.index(row.found.algorithm) % len(COLOURS)]
        panel.add_patch(cell(x, y, colour))
        text = "\n".join([*row.found.algorithm.split("_"), units.time(row.found.us)])
        panel.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=6, color="white")
    panel.set_xlim(0, len(sizes))
    panel.set_ylim(0, len(shapes))
    panel.set_xticks([x + 0.5 for x in range(len(sizes))], [units.size(nbytes) for nbytes in sizes], fontsize=8)
    panel.set_yticks([y + 0.5 for y in range(len(shapes))], shapes, fontsize=8)
    panel.set_xlabel("bytes of the message")
    panel.set_ylabel("nodes x ranks per node")
    panel.set_title(f"the best {collective}, foreseen", loc="left")
    figure.savefig(output, dpi=150)


def wins(name: str, best: Sequence[Any]) -> bool:
    return any(row.found.algorithm == name for row in best)


def cell(x: int, y: int, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white", linewidth=1.5)


def sheet(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    panel.spines[["top", "right"]].set_visible(False)
    return figure, panel
