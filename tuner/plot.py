"""Where one algorithm overtakes another: times by size with intervals, the baseline, and the choice of the table."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from collectives.selection import NATIVE, Table
from collectives.table import Rule
from tuner import units
from tuner.measure import read_samples
from tuner.statistics import Interval, median_interval

# Okabe and Ito's colours, which people who see colours differently can tell apart; black is the MPI library's.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8C6D31", "#7F7F7F", "#B8A800")
MARKS = "osD^vP*Xh"
Points = dict[int, Interval]


def crossover(table: Table, path: Path, output: Path) -> None:
    """Draws a pair of panels for each collective, dtype and operation of the table: time, and speed-up over native.

    ValueError where the raw samples are missing or the file cannot be written.
    """
    groups = curves(table, path)
    keys = sorted({rule.key for rule in table.rules if rule.key in groups})
    if not keys:
        raise ValueError(
            f"no raw samples of this table's rules in {samples_path(table, path)}; tune again to have some"
        )
    figure = Figure(figsize=(9.5, 7.2 * len(keys)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2 * len(keys), 1, height_ratios=[3, 2] * len(keys), squeeze=False)[:, 0]
    for place, key in enumerate(keys):
        rules = [rule for rule in table.rules if rule.key == key]
        above, below = panels[2 * place], panels[2 * place + 1]
        below.sharex(above)
        draw(above, below, groups[key], rules)
        collective, dtype, op = key
        shape = units.shape_name(table.topology.ranks_per_node)
        above.set_title(
            f"{collective} of {dtype} ({op}), {shape} ranks over {', '.join(table.topology.links)}", loc="left"
        )
        where = f"{table.topology.cpu}, {table.topology.mpi}, {table.created}"
        above.set_title(where, loc="right", fontsize=7, color="0.4", y=1.05)
    try:
        figure.savefig(output, dpi=150)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot be written: {error}") from error


def samples_path(table: Table, path: Path) -> Path:
    return path.parent / (table.samples or f"{path.stem}.samples.jsonl")


def curves(table: Table, path: Path) -> dict[tuple[str, str, str], dict[str, Points]]:
    """For each of the table's keys, for each algorithm, its best parameters' interval by size, from the raw samples."""
    place = samples_path(table, path)
    try:
        lines = read_samples(place)
    except OSError as error:
        raise ValueError(f"the raw samples in {place} cannot be read: {error.strerror}") from error
    times: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    raced: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for line in lines:
        if line["stage"] in ("screen", "race"):
            params = tuple(sorted(line["params"].items()))
            call = line["collective"], line["dtype"], line["op"], line["bytes"], line["algorithm"], params
            times[call] += line["us"]
            if line["stage"] == "race":
                raced[call] += line["us"]
    found: dict[tuple[str, str, str], dict[str, Points]] = {}
    for call, us in times.items():
        collective, dtype, op, nbytes, algorithm, _ = call
        interval = median_interval(raced.get(call) or us)
        for rule in table.serving(collective, dtype, op)[:1]:
            points = found.setdefault(rule.key, {}).setdefault(algorithm, {})
            if nbytes not in points or interval.median < points[nbytes].median:
                points[nbytes] = interval
    return found


def draw(above: Any, below: Any, found: Mapping[str, Points], rules: Sequence[Rule]) -> None:
    names = sorted((name for name in found if name != NATIVE), key=lambda name: (not chosen(name, rules), name))
    styles = {name: (COLOURS[i % len(COLOURS)], MARKS[i % len(MARKS)]) for i, name in enumerate(names)}
    native = found.get(NATIVE, {})
    for name in names:
        colour, mark = styles[name]
        wins = chosen(name, rules)
        style: dict[str, Any] = {"color": colour, "marker": mark, "markersize": 4, "linewidth": 1.8 if wins else 0.9,
                                 "alpha": 1.0 if wins else 0.65, "zorder": 3 if wins else 2}  # fmt: skip
        line(above, found[name], name, style)
        line(below, {n: over(native[n], each) for n, each in found[name].items() if n in native}, name, style)
    baseline: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.4, "zorder": 4}
    if native:
        line(above, native, "MPI library's own", baseline)
        below.axhline(1, **baseline)
    mark_winners(above, below, found, rules, native, styles)
    sizes = sorted({nbytes for points in found.values() for nbytes in points})
    for panel in (above, below):
        panel.set_xscale("log", base=2)
        panel.grid(True, which="major", color="0.9", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        ticks = sizes[:: max(1, len(sizes) // 11)]
        panel.xaxis.set_major_locator(FixedLocator(ticks))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: units.size(int(nbytes))))
    above.set_yscale("log")
    above.yaxis.set_major_formatter(FuncFormatter(lambda us, _: units.time(us)))
    above.tick_params(labelbottom=False)
    above.set_ylabel("time of the slowest rank (median, 95 %)")
    below.set_ylabel("times as fast as the\nMPI library's own" if native else "")
    below.set_xlabel("bytes of the message")
    if native:
        top = max(
            (over(native[n], each).median for p in found.values() for n, each in p.items() if n in native), default=2
        )
        below.set_ylim(0, min(6.0, 1.15 * max(top, 1.2)))
    above.legend(loc="upper left", fontsize=8, frameon=False, ncols=2)


def chosen(name: str, rules: Sequence[Rule]) -> bool:
    return any(rule.algorithm == name for rule in rules)


def over(native: Interval, ours: Interval) -> Interval:
    """How many times as fast; the interval is ours alone."""
    return Interval(native.median / ours.median, native.median / ours.high, native.median / ours.low)


def line(panel: Any, points: Points, label: str, style: Mapping[str, Any]) -> None:
    sizes = sorted(points)
    panel.plot(sizes, [points[n].median for n in sizes], label=label, **style)
    low, high = [points[n].low for n in sizes], [points[n].high for n in sizes]
    panel.fill_between(sizes, low, high, color=style["color"], alpha=0.15, linewidth=0)


def mark_winners(
    above: Any,
    below: Any,
    found: Mapping[str, Points],
    rules: Sequence[Rule],
    native: Points,
    styles: Mapping[str, Any],
) -> None:
    """A ring around what the table chooses at each size, and a strip of its colour along the axis."""
    sizes = sorted({nbytes for points in found.values() for nbytes in points})
    for rule in rules:
        served = [n for n in sizes if rule.min_bytes <= n <= (rule.max_bytes if rule.max_bytes is not None else n)]
        colour = styles.get(rule.algorithm, ("black", ""))[0]
        for nbytes in served:
            point = found.get(rule.algorithm, {}).get(nbytes)
            ring = {"markersize": 10, "markerfacecolor": "none", "markeredgecolor": colour, "markeredgewidth": 1.3}
            if point:
                above.plot([nbytes], [point.median], "o", **ring)
            if point and nbytes in native:
                below.plot([nbytes], [over(native[nbytes], point).median], "o", **ring)
        if served:
            low, high = max(rule.min_bytes, sizes[0] / 1.4), min(rule.max_bytes or 1 << 62, sizes[-1] * 1.4)
            below.axvspan(low, high, ymin=0, ymax=0.035, color=colour, linewidth=0)
