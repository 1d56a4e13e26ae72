"""What the figures of benchmarks.peers say: rows with intervals, the goals that are met, a table and a plot."""

import json
import os
import platform
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from tuner import units
from tuner.statistics import Interval, geometric_mean, median_interval, ratio_interval

OURS = ("treering", "tuned")  # the default choice, and that of a table
NO_LIBRARY = ("gloo", "copy", "update")
NEVER_SLOWER = 1.05  # no size at which the whole interval of the ratio lies above
FASTER = {2: 1.25, 4: 1.3}  # ranks: times, in the geometric mean over sizes
GLOO = {16 << 10: 50, 64 << 10: 20, 1 << 20: 6, 64 << 20: 4}  # bytes: times; the first holds for smaller ones too
COPIES = {16 << 20: 1.6, 64 << 20: 1.2}  # bytes: at most so many times a plain copy
Case = Mapping[str, Any]  # one size in one launch: what a rank's `case` gives


@dataclass(frozen=True)
class Row:
    """One size of message, over all launches.

    us: microseconds of each contender. ratios: of ours to another, below 1 where ours is faster, of pairs taken in the
    same repetition; to Gloo, which is timed apart, of each launch's medians. by_launch: each launch's median ratio.
    choices: what ours ran. start_skew_ns: how far apart the ranks began, the median.
    """

    collective: str
    dtype: str
    bytes: int
    us: dict[str, Interval] = field(default_factory=dict)
    ratios: dict[str, dict[str, Interval]] = field(default_factory=dict)
    by_launch: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    choices: dict[str, list[str]] = field(default_factory=dict)
    start_skew_ns: float = 0.0

    def ratio(self, ours: str, other: str) -> Interval | None:
        return self.ratios.get(ours, {}).get(other)

    def libraries(self, ours: str) -> dict[str, Interval]:
        return {name: ratio for name, ratio in self.ratios.get(ours, {}).items() if name not in NO_LIBRARY}

    def best(self, ours: str) -> tuple[str, Interval] | None:
        """The library beside which ours does worst, and the ratio to it."""
        found = self.libraries(ours)
        return max(found.items(), key=lambda item: item[1].median) if found else None


@dataclass(frozen=True)
class Goal:
    what: str
    met: bool
    found: str


def rows(launches: Iterable[Mapping[str, Any]]) -> list[Row]:
    """A row for each collective, dtype and size; a launch has its `library` and its `cases`."""
    cases: dict[tuple[str, str, int], list[tuple[str, Case]]] = defaultdict(list)
    for launch in launches:
        for case in launch["cases"]:
            cases[case["collective"], case["dtype"], case["bytes"]].append((launch["library"], case))
    return [row(*key, found) for key, found in cases.items()]


def row(collective: str, dtype: str, nbytes: int, cases: Sequence[tuple[str, Case]]) -> Row:
    """From cases of the same call, each with its launch's library."""
    made = Row(collective, dtype, nbytes, start_skew_ns=median(case["start_skew_ns"] for _, case in cases))
    all_of: dict[str, list[float]] = defaultdict(list)
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for library, case in cases:
        times = {library if name == "library" else name: us for name, us in case["times"].items()}
        for name, us in times.items():
            all_of[name] += us
        for ours in (name for name in OURS if name in times):
            for name in (name for name in times if name not in OURS):
                apart = name == "gloo"
                mine, theirs = ([median(us)] if apart else us for us in (times[ours], times[name]))
                pairs[ours, name] += zip(mine, theirs, strict=True)
                between = median(a / b for a, b in zip(mine, theirs, strict=True))
                made.by_launch.setdefault(ours, {}).setdefault(name, []).append(round(between, 4))
        for ours, choice in case["choices"].items():
            if choice not in made.choices.setdefault(ours, []):
                made.choices[ours].append(choice)
    made.us.update({name: median_interval(us) for name, us in all_of.items()})
    for (ours, name), found in pairs.items():
        mine, theirs = zip(*found, strict=True)
        made.ratios.setdefault(ours, {})[name] = ratio_interval(mine, theirs)
    return made


def grouped(found: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """By collective and dtype, sizes ascending."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for each in sorted(found, key=lambda each: each.bytes):
        groups.setdefault((each.collective, each.dtype), []).append(each)
    return groups


def contenders(group: Iterable[Row]) -> list[str]:
    """Ours, the libraries, Gloo, the copy and the update."""
    there = {name for each in group for name in each.us}
    libraries = sorted(there - set(OURS) - set(NO_LIBRARY))
    return [name for name in (*OURS, *libraries, *NO_LIBRARY) if name in there]


def mean_ratio(group: Iterable[Row], ours: str) -> float | None:
    """Geometric mean over sizes of the ratio to the best library; None where there is none."""
    ratios = [best[1].median for each in group if (best := each.best(ours))]
    return geometric_mean(ratios) if ratios else None


def faults(launches: Iterable[Mapping[str, Any]]) -> list[str]:
    """Which contenders did not do what they must, where and why; each once."""
    found = {
        f"{launch['library'] if name == 'library' else name}, {case['collective']} of {case['dtype']}, "
        f"{units.size(case['bytes'])}, on {launch['library']}: {why}": None
        for launch in launches
        for case in launch["cases"]
        for name, why in case["faults"].items()
    }
    return list(found)


# ---------------------------------------------------------------- goals
def goals(found: Iterable[Row], ranks: int) -> list[Goal]:
    """Those that the rows say something about, for the default choice and for a table's."""
    groups = grouped(found)
    return [
        goal
        for ours in OURS
        for (collective, dtype), group in groups.items()
        for goal in (*beside_libraries(ours, collective, dtype, group, ranks), *beside_others(ours, dtype, group))
    ]


def beside_libraries(ours: str, collective: str, dtype: str, group: Sequence[Row], ranks: int) -> Iterator[Goal]:
    mean = mean_ratio(group, ours)
    if mean is None:
        return
    slower, perhaps = list[str](), list[str]()
    for each in group:
        for name, ratio in each.libraries(ours).items():
            if ratio.median > NEVER_SLOWER:
                certain = ratio.low > NEVER_SLOWER
                (slower if certain else perhaps).append(f"{units.size(each.bytes)} ({name} {shown(ratio)})")
    said = f"slower at {', '.join(slower) or 'none'}" + (f"; perhaps at {', '.join(perhaps)}" if perhaps else "")
    yield Goal(f"{ours}, {collective} of {dtype}, at no size slower than the best library", not slower, said)
    if collective == "allreduce" and ranks in FASTER:
        what = f"{ours}, allreduce of {dtype}, {FASTER[ranks]} times as fast as the best library in the geometric mean"
        yield Goal(what, 1 / mean >= FASTER[ranks], f"{1 / mean:.3f} times over {len(group)} sizes")


def beside_others(ours: str, dtype: str, group: Sequence[Row]) -> Iterator[Goal]:
    """Gloo and the plain copy, at the sizes that have a goal. Only allreduce is timed on Gloo."""
    least = min(GLOO)
    for nbytes, times in GLOO.items():
        here = [each for each in group if each.bytes == nbytes or each.bytes < nbytes == least]
        if speeds := [1 / ratio.median for each in here if (ratio := each.ratio(ours, "gloo"))]:
            at = f"{'up to' if nbytes == least else 'at'} {units.size(nbytes)}"
            what = f"{ours}, allreduce of {dtype}, {times} times as fast as Gloo {at}"
            yield Goal(what, min(speeds) >= times, f"{min(speeds):.1f} times at the least")
    for each in group:
        ratio = each.ratio(ours, "copy")
        if ratio and each.collective == "allreduce" and dtype == "float32" and each.bytes in COPIES:
            most, at, said = COPIES[each.bytes], units.size(each.bytes), shown(ratio)
            if "update" in each.us:
                update = each.us["update"].median / each.us["copy"].median
                said += f"; to add a number to all of it in place takes {update:.2f} copies"
            yield Goal(f"{ours}, allreduce, at most {most} plain copies at {at}", ratio.median <= most, said)


# ---------------------------------------------------------------- words
def shown(ratio: Interval) -> str:
    return f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def microseconds(interval: Interval | None) -> str:
    """Two decimals below 100, none from 1,000 on."""
    if interval is None:
        return "-"
    us = interval.median
    return f"{us:.2f}" if us < 100 else f"{us:.1f}" if us < 1000 else f"{us:,.0f}"


def table(found: Iterable[Row]) -> str:
    """Times in microseconds, and the ratio to the best library with its interval and that library's name."""
    lines = []
    for (collective, dtype), group in grouped(found).items():
        names = contenders(group)
        ours = [name for name in OURS if name in names]
        heads = [*(f"{name:>10}" for name in names), *(f"   {f'{name} to the best':<32}" for name in ours)]
        lines += ["", f"{collective} of {dtype}, microseconds", f"{'bytes':>10}" + "".join(heads)]
        for each in group:
            times = (f"{microseconds(each.us.get(name)):>10}" for name in names)
            bests = (f"{shown(best[1])} {best[0]}" if (best := each.best(name)) else "-" for name in ours)
            cells = [f"{units.size(each.bytes):>10}", *times, *(f"   {best:<32}" for best in bests)]
            lines.append("".join(cells).rstrip())
        for name in ours:
            if mean := mean_ratio(group, name):
                lines.append(f"geometric mean, {name} to the best: {mean:.3f}")
    return "\n".join(lines[1:])


def machine() -> dict[str, Any]:
    """What is measured on, and by which versions."""
    from importlib.metadata import version

    from collectives.topology import processor

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(), "python": platform.python_version(),
        "packages": {name: version(name) for name in ("treering", "numba", "torch", "mpi4py")},
        "load_before": os.getloadavg(),
        "settings": {name: value for name, value in os.environ.items() if name.startswith("TREERING_")},
    }  # fmt: skip


def verdict(found: Iterable[Goal]) -> str:
    return "\n".join(f"{'met    ' if goal.met else 'NOT MET'}  {goal.what}: {goal.found}" for goal in found)


def give(
    context: Mapping[str, Any],
    launches: Sequence[Mapping[str, Any]],
    failed: Sequence[str],
    into: Path | None,
    drawing: Path | None,
) -> int:
    """Print what was found, and write the files that are asked for. The exit status: 1 where anything failed."""
    found = rows(launches)
    reached, wrong = goals(found, context["ranks"]), [*failed, *faults(launches)]
    apart = f"ranks began {median(each.start_skew_ns for each in found):.0f} ns apart" if found else ""
    parts = (title(context), table(found), apart, verdict(reached), "\n".join(f"FAILED   {each}" for each in wrong))
    print("\n\n".join(filter(None, parts)))
    if into:
        content = {
            "context": context,
            "rows": [asdict(each) for each in found],
            "geometric_means": means(found),
            "goals": [asdict(each) for each in reached],
            "failed": wrong,
        }
        into.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if drawing and found:
        plot(found, title(context), drawing)
    return 1 if wrong or not found else 0


def title(context: Mapping[str, Any]) -> str:
    libraries = ", ".join(sorted(context["libraries"].values())) or "no MPI library"
    return (f"{context['ranks']} ranks on {context['cores']} cores of {context['cpu']}, Linux {context['kernel']}; "
            f"{libraries}; treering {context['packages']['treering']}; {context['date']}")  # fmt: skip


def means(found: Iterable[Row]) -> list[dict[str, Any]]:
    """Of the ratio to the best library, over the sizes of a collective and dtype."""
    return [
        {"ours": ours, "collective": collective, "dtype": dtype, "ratio": mean}
        for (collective, dtype), group in grouped(found).items()
        for ours in OURS
        if (mean := mean_ratio(group, ours)) is not None
    ]


# ---------------------------------------------------------------- plot
STYLES: dict[str, dict[str, Any]] = {
    "treering": {"color": "#0072B2", "marker": "o", "linewidth": 2.2},
    "tuned": {"color": "#56B4E9", "marker": "s", "linewidth": 2.2},
    "mpich": {"color": "#E69F00", "marker": "D", "linewidth": 1.2},
    "openmpi": {"color": "#009E73", "marker": "^", "linewidth": 1.2},
    "impi": {"color": "#D55E00", "marker": "v", "linewidth": 1.2},
    "gloo": {"color": "#CC79A7", "marker": "P", "linewidth": 1.2},
    "copy": {"color": "#7F7F7F", "marker": ".", "linewidth": 1.2, "linestyle": "--"},
    "update": {"color": "#B0B0B0", "marker": "x", "linewidth": 1.2, "linestyle": ":"},
}


COLUMNS = 3


def plot(found: Iterable[Row], title: str, output: Path) -> None:
    """For each collective and dtype, times, and below them how many times as fast ours is as each other contender."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    from tuner.plot import line, spread

    groups = grouped(found)
    columns = min(COLUMNS, len(groups))
    lines = -(-len(groups) // columns)
    figure = Figure(figsize=(max(8.0, 6.0 * columns), 8.5 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(textwrap.fill(title, 90 * columns), fontsize=8, color="0.4")
    panels = figure.subplots(2 * lines, columns, height_ratios=[3, 2] * lines, squeeze=False)
    for place in range(len(groups), lines * columns):
        for panel in panels[2 * (place // columns) :, place % columns]:
            panel.set_axis_off()
    for place, ((collective, dtype), group) in enumerate(groups.items()):
        above, below = panels[2 * (place // columns) :, place % columns][:2]
        names, speeds = contenders(group), [1.0]
        ours = next((name for name in reversed(OURS) if name in names), OURS[0])
        for name in names:
            style = {"markersize": 4, "zorder": 3 if name in OURS else 2, **STYLES[name]}
            line(above, {each.bytes: each.us[name] for each in group if name in each.us}, name, style)
            points = {each.bytes: inverse(ratio) for each in group if (ratio := each.ratio(ours, name))}
            line(below, points, name, style)
            speeds += [point.median for point in points.values()]
        below.axhline(1, color="black", linewidth=0.8)
        above.set_title(f"{collective} of {dtype}", loc="left", fontsize=11)
        above.set_yscale("log")
        below.set_yscale("log", base=2)
        below.set_ylim(min(speeds) / 1.5, max(speeds) * 1.5)  # a wide interval need not be seen whole
        above.yaxis.set_major_formatter(FuncFormatter(lambda us, _: units.time(us)))
        below.yaxis.set_major_formatter(FuncFormatter(lambda speed, _: f"{speed:g}x"))
        above.set_ylabel("time of the slowest rank (median, 95 %)")
        below.set_ylabel(f"{ours} as fast as (paired, 95 %)")
        below.set_xlabel("bytes of the message")
        above.legend(fontsize=8, frameon=False)
        for panel in (above, below):
            panel.set_xscale("log", base=2)
            panel.grid(True, which="major", color="0.9", linewidth=0.6)
            panel.spines[["top", "right"]].set_visible(False)
            panel.xaxis.set_major_locator(FixedLocator(spread([each.bytes for each in group])))
            panel.xaxis.set_minor_locator(NullLocator())
            panel.yaxis.set_minor_formatter(NullFormatter())
            panel.xaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: units.size(int(nbytes))))
            panel.tick_params(labelsize=8)
    figure.savefig(output, dpi=150)


def inverse(ratio: Interval) -> Interval:
    return Interval(1 / ratio.median, 1 / ratio.high, 1 / ratio.low)
