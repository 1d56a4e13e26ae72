"""Where one algorithm overtakes another: times by size with intervals, speed-ups, a heat map, the table's choice."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from collectives.selection import NATIVE, Table
from collectives.tables.table import ORDINARY, Rule
from tuner import heat, units
from tuner.beside import STAGE
from tuner.measure import GLOO, read_samples
from tuner.space import BASELINE, Candidate, candidate
from tuner.statistics import Interval, median_interval

# Okabe and Ito's colours, which people who see colours differently can tell apart; black is the MPI library's.
COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#8C6D31",
    "#7F7F7F",
    "#B8A800",
    "#5E3C99",
    "#A6D854",
)
MARKS = "osD^vP*Xh<>"
STRIP = 0.09  # of the lower panel's height
LETTERS = 120  # that fit along the strip
TICKS = 11
OTHERS = {NATIVE: "MPI library's own", GLOO.algorithm: "Gloo"}  # timed beside treering's algorithms
Points = dict[int, Interval]
Styles = Mapping[str, tuple[str, str]]


def crossover(table: Table, path: Path, output: Path) -> None:
    """Draws panels for each collective, dtype and operation of the table: time, speed-up over native, over Gloo where
    it was timed, and a heat map of all algorithms.

    ValueError where the raw samples are missing or the file cannot be written.
    """
    groups = curves(table, path)
    keys = sorted({rule.key for rule in table.rules if rule.key in groups})
    if not keys:
        raise ValueError(
            f"no raw samples of this table's rules in {samples_path(table, path)}; tune again to have some"
        )
    served = {key: [rule for rule in table.rules if rule.key == key] for key in keys}
    gains = {key: over_gloo(groups[key], rules) for key, rules in served.items()}
    heights = [
        height for key in keys for height in (4.3, 2.9, 1.5 if gains[key] else 0, heat.height(groups[key])) if height
    ]  # fmt: skip
    figure = Figure(figsize=(9.5, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = iter(figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    for key, rules in served.items():
        above, below = next(panels), next(panels)
        below.sharex(above)
        draw(above, below, groups[key], rules)
        if gains[key]:
            draw_gloo(next(panels), above, gains[key])
        heat.heat(next(panels), groups[key], rules, OTHERS)
        collective, dtype, op, storage = key
        shape = units.shape_name(table.topology.ranks_per_node)
        above.set_title(
            f"{collective} of {dtype} ({op}) in {storage} memory, {shape} ranks over {', '.join(table.topology.links)}",
            loc="left",
        )
        where = f"{table.topology.cpu}, {table.topology.mpi}, {table.created}"
        below.text(1, -0.24, where, transform=below.transAxes, fontsize=7, color="0.4", ha="right", va="top")
    try:
        figure.savefig(output, dpi=150)
    except OSError as error:
        raise ValueError(f"{error.strerror}; name a file that can be written") from error


def samples_path(table: Table, path: Path) -> Path:
    return path.parent / (table.samples or f"{path.stem}.samples.jsonl")


def curves(table: Table, path: Path) -> dict[tuple[str, str, str, str], dict[str, Points]]:
    """For each of the table's keys, for each algorithm, its best parameters' interval by size, from the raw samples."""
    place = samples_path(table, path)
    try:
        lines = read_samples(place)
    except OSError as error:
        raise ValueError(f"the raw samples in {place} cannot be read: {error.strerror}") from error
    calls: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for each in lines:
        if each["stage"] in ("screen", "race", STAGE) and each["us"]:
            storage = each.get("storage", ORDINARY)
            calls[each["collective"], each["dtype"], each["op"], storage, each["bytes"]].append(each)
    found: dict[tuple[str, str, str, str], dict[str, Points]] = {}
    for (collective, dtype, op, storage, nbytes), measured in calls.items():
        for rule in table.serving(collective, dtype, op, storage)[:1]:
            together = [each for each in measured if each["stage"] != STAGE]
            apart = [us for each in measured if each["stage"] == STAGE for us in each["us"]]
            for algorithm, interval in [*(fastest(together).items() if together else ()), *gloo_of(apart)]:
                found.setdefault(rule.key, {}).setdefault(algorithm, {})[nbytes] = interval
    return found


def gloo_of(us: Sequence[float]) -> list[tuple[str, Interval]]:
    return [(GLOO.algorithm, median_interval(us))] if us else []


def fastest(measured: Sequence[Mapping[str, Any]]) -> dict[str, Interval]:
    """Each algorithm's interval at one size, with its best parameters: of those that raced, where any did.

    Candidates ran in different minutes of a machine that drifts. So a time is taken as its ratio to that of the
    candidate which ran in most jobs, in the same block, times this one's median over all.
    """
    jobs: dict[int, dict[Candidate, list[float]]] = defaultdict(dict)
    raced = set()
    for each in measured:
        who = candidate(each["algorithm"], each["params"])
        jobs[each["job"]][who] = each["us"]
        raced |= {who} if each["stage"] == "race" else set()
    ran = Counter(who for job in jobs.values() for who in job if who != BASELINE)
    reference = max(ran, key=lambda who: (ran[who], str(who))) if ran else BASELINE
    scale = median_interval([us for job in jobs.values() for us in job.get(reference, [])]).median
    times: dict[Candidate, list[float]] = defaultdict(list)
    for job in jobs.values():
        for who, taken in job.items() if reference in job else ():
            times[who] += [scale * us / beside for us, beside in zip(taken, job[reference], strict=True)]
    times[reference] = [us for job in jobs.values() for us in job.get(reference, [])]
    best: dict[str, Interval] = {}
    for who, taken in sorted(times.items(), key=lambda item: (item[0] not in raced, median_interval(item[1]).median)):
        best.setdefault(who.algorithm, median_interval(taken))
    return best


def draw(above: Any, below: Any, found: Mapping[str, Points], rules: Sequence[Rule]) -> None:
    names = sorted((name for name in found if name not in OTHERS), key=lambda name: (not chosen(name, rules), name))
    styles = {name: (COLOURS[i % len(COLOURS)], MARKS[i % len(MARKS)]) for i, name in enumerate(names)}
    native = found.get(NATIVE, {})
    for name in names:
        colour, mark = styles[name]
        wins = chosen(name, rules)
        style: dict[str, Any] = {"color": colour, "marker": mark, "markersize": 4, "linewidth": 1.8 if wins else 0.9,
                                 "alpha": 1.0 if wins else 0.6, "zorder": 3 if wins else 2}  # fmt: skip
        line(above, found[name], name, style)
        line(below, {n: over(native[n], each) for n, each in found[name].items() if n in native}, name, style)
    baseline: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.4, "zorder": 4}
    if native:
        line(above, native, "MPI library's own", baseline)
        below.axhline(1, **baseline)
    if GLOO.algorithm in found:
        line(above, found[GLOO.algorithm], "Gloo", {**baseline, "color": "0.4", "linestyle": ":"})
    sizes = sorted({nbytes for points in found.values() for nbytes in points})
    mark_choice(above, below, found, rules, styles, sizes)
    for panel in (above, below):
        panel.set_xscale("log", base=2)
        panel.set_xlim(max(sizes[0], 1) / 1.5, sizes[-1] * 1.5)
        panel.grid(True, which="major", color="0.9", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        panel.xaxis.set_major_locator(FixedLocator(spread(sizes)))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: units.size(int(nbytes))))
    above.set_yscale("log")
    medians = [point.median for points in found.values() for point in points.values()]
    above.set_ylim(min(medians) / 2, max(medians) * 4)
    above.yaxis.set_major_formatter(FuncFormatter(lambda us, _: units.time(us)))
    above.tick_params(labelbottom=False)
    above.set_ylabel("time of the slowest rank (median, 95 %)")
    above.legend(loc="upper left", fontsize=8, frameon=False, ncols=2)
    below.set_xlabel("bytes of the message; the strip names the table's choice")
    if native:
        won = [(found[rule.algorithm], rule) for rule in rules if rule.algorithm in found]
        gains = [over(native[n], each).median for points, _ in won for n, each in points.items() if n in native]
        below.set_ylabel("speed-up over the\nMPI library's own")
        below.set_yscale("log", base=2)
        below.set_ylim(0.25, max(4.0, 1.5 * max(gains, default=1.0)))
        below.yaxis.set_major_formatter(FuncFormatter(lambda gain, _: f"{gain:g}x"))


def over_gloo(found: Mapping[str, Points], rules: Sequence[Rule]) -> Points:
    """How many times as fast as Gloo the table's choice is; they were timed one after the other."""
    gloo = found.get(GLOO.algorithm, {})
    return {
        n: over(gloo[n], point) for rule in rules for n, point in found.get(rule.algorithm, {}).items()
        if n in gloo and rule.min_bytes <= n <= (math.inf if rule.max_bytes is None else rule.max_bytes)
    }  # fmt: skip


def draw_gloo(panel: Any, above: Any, gains: Points) -> None:
    line(panel, gains, "", {"color": "0.25", "marker": "o", "markersize": 4, "linewidth": 1.4})
    panel.sharex(above)
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter(FuncFormatter(lambda gain, _: f"{gain:g}x"))
    panel.grid(True, which="major", color="0.9", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_ylabel("speed-up\nover Gloo")


def chosen(name: str, rules: Sequence[Rule]) -> bool:
    return any(rule.algorithm == name for rule in rules)


def over(native: Interval, ours: Interval) -> Interval:
    """How many times as fast; the interval is ours alone."""
    return Interval(native.median / ours.median, native.median / ours.high, native.median / ours.low)


def line(panel: Any, points: Points, label: str, style: Mapping[str, Any]) -> None:
    sizes = sorted(points)
    medians = [points[n].median for n in sizes]
    panel.plot(sizes, medians, label=label, **style)
    bars = [[points[n].median - points[n].low for n in sizes], [points[n].high - points[n].median for n in sizes]]
    look: dict[str, Any] = {"ecolor": style["color"], "elinewidth": 0.9, "capsize": 2, "alpha": 0.5, "zorder": 1}
    panel.errorbar(sizes, medians, bars, fmt="none", **look)


def mark_choice(
    above: Any, below: Any, found: Mapping[str, Points], rules: Sequence[Rule], styles: Styles, sizes: Sequence[int]
) -> None:
    """A ring around what the table chooses at each size, and a strip along the axis that names it."""
    native = found.get(NATIVE, {})
    left, right = max(sizes[0], 1) / 1.5, sizes[-1] * 1.5
    for rule in rules:
        colour, _ = styles.get(rule.algorithm, ("black", ""))
        end = math.inf if rule.max_bytes is None else rule.max_bytes
        ring: dict[str, Any] = {"markersize": 9, "markerfacecolor": "none", "markeredgecolor": colour, "zorder": 5}
        for nbytes, point in found.get(rule.algorithm, {}).items():
            if rule.min_bytes <= nbytes <= end:
                above.plot([nbytes], [point.median], "o", **ring)
                if nbytes in native:
                    below.plot([nbytes], [over(native[nbytes], point).median], "o", **ring)
        low, high = max(rule.min_bytes, left), min(end, right)
        if low >= high:
            continue
        below.axvspan(low, high, ymin=0, ymax=STRIP, facecolor=colour, edgecolor="white", linewidth=1, zorder=6)
        share = math.log(high / low) / math.log(right / left)
        if share * LETTERS > len(rule.algorithm):
            text = {"color": "white", "fontsize": 8, "ha": "center", "va": "center", "zorder": 7}
            middle = math.sqrt(low * high)
            below.text(middle, STRIP / 2, rule.algorithm, transform=below.get_xaxis_transform(), **text)


def spread(sizes: Sequence[int]) -> list[int]:
    """Sizes to name on the axis: as many as there is room for, the last one among them."""
    apart = math.log2(sizes[-1] / max(sizes[0], 1)) / TICKS
    kept = [sizes[-1]]
    for nbytes in reversed(sizes[:-1]):
        if nbytes and math.log2(kept[-1] / nbytes) >= apart:
            kept.append(nbytes)
    return kept
