"""What the figures of benchmarks.ddp say: rows with intervals, the goals that are met, a table and a plot."""

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers_plot import Goal, shown, verdict
from tuner.statistics import Interval, median_interval, ratio_interval

CONTENDERS = ("alone", "gloo", "treering")
STEP = {2: {"mlp": 0.55, "cnn": 0.7, "transformer": 0.7}}  # ranks: most of Gloo's whole step
STEP_OF_MANY = 0.6  # the same, of each model on 4 ranks
STEP_ON = {"2x1": 1.0, "2x2": 0.75}  # the same, of each model on hosts with links of 1 Gbit/s
OVER_ALONE = 0.2  # most of what Gloo adds to forward and backward alone
FIRST_SECONDS = 1.0  # that registering and the first step may take more than over Gloo
ROUNDING = 1e-4  # by which gradients may differ on more than two ranks, relative to the largest of a tensor


@dataclass(frozen=True)
class Row:
    """One model on so many ranks, of one machine or of a bed of hosts ("2x2": two hosts with two ranks each).

    ms: of a step. over_gloo: the whole step's, paired. added: what treering adds to forward and backward alone, over
    what Gloo adds; of medians. first_s: seconds to wrap the model and take a first step. difference: the largest of
    gradients, relative. algorithms: by bytes of the bucket.
    """

    model: str
    ranks: int
    ms: dict[str, Interval]
    over_gloo: Interval
    added: float
    first_s: dict[str, float]
    difference: float
    algorithms: dict[int, str]
    bed: str | None = None

    @property
    def where(self) -> str:
        return f"{self.bed} hosts" if self.bed else f"{self.ranks} ranks"

    @property
    def right(self) -> bool:
        return self.difference <= (0.0 if self.ranks <= 2 else ROUNDING)


def summary(launch: Mapping[str, Any], bed: str | None) -> list[Row]:
    """A row for each case of a launch."""
    return [replace(row(launch["ranks"], case), bed=bed) for case in launch["cases"]]


def row(ranks: int, case: Mapping[str, Any]) -> Row:
    ms: Mapping[str, Sequence[float]] = case["ms"]
    alone, gloo, ours = (median(ms[name]) for name in CONTENDERS)
    return Row(
        case["model"],
        ranks,
        {name: median_interval(ms[name]) for name in CONTENDERS},
        ratio_interval(ms["treering"], ms["gloo"]),
        (ours - alone) / (gloo - alone),
        dict(case["first_step_s"]),
        case["gradient_difference"],
        {bucket["bytes"]: bucket["algorithm"] for bucket in case["buckets"]},
    )


def goals(rows: Iterable[Row]) -> Iterator[Goal]:
    for each in rows:
        who = f"{each.model} on {each.where}"
        on_a_node = STEP_OF_MANY if each.ranks >= 4 else STEP.get(each.ranks, {}).get(each.model)
        most = STEP_ON.get(each.bed) if each.bed else on_a_node
        if most is not None:
            found = shown(each.over_gloo)
            yield Goal(f"{who}, whole step at most {most} of Gloo's", each.over_gloo.median <= most, found)
        if each.ranks == 2 and not each.bed:
            found = f"{each.added:.3f}"
            yield Goal(f"{who}, over alone at most {OVER_ALONE} of Gloo's", each.added <= OVER_ALONE, found)
        later = each.first_s["treering"] - each.first_s["gloo"]
        yield Goal(f"{who}, first step within {FIRST_SECONDS:g} s of Gloo's", later <= FIRST_SECONDS, f"{later:+.2f} s")


def table(rows: Iterable[Row]) -> str:
    head = "".join(f"{name:>10}" for name in CONTENDERS)
    lines = [f"{'model':12}{'on':>10}{head}   ms a step; {'over Gloo':24}{'added':>6}  buckets"]
    for each in rows:
        times = "".join(f"{each.ms[name].median:10.2f}" for name in CONTENDERS)
        buckets = ", ".join(f"{nbytes / 2**20:.3g} MiB {name}" for nbytes, name in each.algorithms.items())
        lines.append(
            f"{each.model:12}{each.where:>10}{times}{'':14}{shown(each.over_gloo):24}{each.added:6.2f}  {buckets}"
        )
    return "\n".join(lines)


def give(context: Mapping[str, Any], rows: Sequence[Row], into: Path | None, drawing: Path | None) -> int:
    """Print what was found, and write the files that are asked for. The exit status: 1 where gradients are wrong."""
    reached = list(goals(rows))
    wrong = [
        f"FAILED   {each.model} on {each.where}: gradients differ by {each.difference:.2g}"
        for each in rows
        if not each.right
    ]
    print("\n\n".join(filter(None, (title(context), table(rows), verdict(reached), "\n".join(wrong)))))
    if into:
        content = {"context": context, "rows": [asdict(each) for each in rows], "goals": [asdict(g) for g in reached]}
        into.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if drawing and rows:
        plot(rows, title(context), drawing)
    return 1 if wrong else 0


def title(context: Mapping[str, Any]) -> str:
    packages = context["packages"]
    return (
        f"{context['cores']} cores of {context['cpu']}, Linux {context['kernel']}; torch {packages['torch']}, "
        f"treering {packages['treering']}; {context['date']}"
    )


def plot(rows: Sequence[Row], title: str, output: Path) -> None:
    """For each place, a group of bars for each model: alone, over Gloo, over treering, with intervals."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from benchmarks.peers_plot import STYLES

    places = list(dict.fromkeys(each.where for each in rows))
    figure = Figure(figsize=(5.5 * len(places), 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(textwrap.fill(title, 80 * len(places)), fontsize=8, color="0.4")
    panels = figure.subplots(1, len(places), squeeze=False)[0]
    colours = {"alone": "0.75", **{name: STYLES[name]["color"] for name in CONTENDERS[1:]}}
    for panel, where in zip(panels, places, strict=True):
        here = [each for each in rows if each.where == where]
        for place, name in enumerate(CONTENDERS):
            at = [i + 0.27 * (place - 1) for i in range(len(here))]
            found = [each.ms[name] for each in here]
            low, high = [t.median - t.low for t in found], [t.high - t.median for t in found]
            bars = {"ecolor": "0.3", "elinewidth": 0.9, "capsize": 2}
            heights = [t.median for t in found]
            panel.bar(at, heights, 0.25, yerr=[low, high], label=name, color=colours[name], error_kw=bars)
        for i, each in enumerate(here):
            text = f"{each.over_gloo.median:.2f} of Gloo's"
            panel.annotate(text, (i + 0.27, each.ms["treering"].high), ha="center", va="bottom", fontsize=7)
        panel.set_title(where, loc="left", fontsize=11)
        panel.set_xticks(range(len(here)), [each.model for each in here])
        panel.set_ylabel("ms a training step, the slowest rank's (median, 95 %)")
        panel.grid(True, axis="y", color="0.9", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(fontsize=8, frameon=False)
    figure.savefig(output, dpi=150)
