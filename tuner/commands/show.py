"""Show a tuning table: which algorithm serves which sizes, how fast, against what. --plot draws the crossovers."""

import argparse
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from collectives.selection import Table, load
from collectives.tables.conditions import DRIFTED, Conditions, Finding
from collectives.tables.table import GPU, SYMMETRIC, Rule
from tuner import terminal, units
from tuner.commands.common import UsageError, add_json, note, picture, print_json, value
from tuner.space import Candidate

if TYPE_CHECKING:
    from rich.console import Console

BAR = 16  # characters of a speed-up of LONGEST
LONGEST = 4.0
EIGHTHS = " ▏▎▍▌▋▊▉█"
EXAMPLES = """
  treering show table.json
  treering show table.json --plot crossover.png
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", help="a file that `treering tune` wrote")
    parser.add_argument(
        "--plot", type=value(picture), metavar="FILE", help="draw the measured times there (.png, .svg or .pdf)"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    table = load(args.table)
    if args.json:
        print_json(msgspec.to_builtins(table))
    else:
        show(table)
    if args.plot:
        try:
            from tuner.plot import crossover
        except ImportError as error:
            raise UsageError(f"--plot needs matplotlib ({error}); pip install 'treering[plot]'") from None
        try:
            crossover(table, Path(args.table), args.plot)
        except ValueError as error:
            raise UsageError(f"--plot {args.plot}: {error}") from None
        note(f"wrote {args.plot}")
    return 0


def show(table: Table, console: "Console | None" = None) -> None:
    """Print a table, to standard output where no console is given."""
    from rich.table import Table as Grid

    console = console or terminal.console()
    place = table.topology
    console.print(
        f"[bold]{units.shape_name(place.ranks_per_node)}[/] ranks over {', '.join(place.links) or '?'}; ", end=""
    )
    console.print(f"{place.cpu}; {place.mpi}; {table.created or 'date unknown'}", markup=False)
    for (collective, dtype, op, storage), rules in groupby(table.rules, key=lambda rule: rule.key):
        where = {SYMMETRIC: ", symmetric memory", GPU: f", on {place.device}"}.get(storage, "")
        grid = Grid(
            title=f"{collective}, dtype {dtype}, op {op}{where}", title_justify="left", box=None, padding=(0, 2, 0, 0)
        )
        for heading, justify in (("bytes", "right"), ("algorithm", "left"), ("at", "right"), ("median", "right"),
                                 ("95 %", "left"), ("native", "right"), ("speed-up over native", "left"),
                                 ("runner-up", "left")):  # fmt: skip
            folds = heading in ("algorithm", "runner-up")
            grid.add_column(heading, justify=justify, no_wrap=not folds, overflow="fold")  # type: ignore[arg-type]
        for rule in rules:
            grid.add_row(*row(rule))
        console.print(grid)
        for line in conditions_told(table.conditions(rule)) if storage != SYMMETRIC else ():
            console.print(f"  {line}", markup=False)
    for advice in table.ddp:
        from tuner.ddp import shown

        console.print(shown(advice), markup=False)


def conditions_told(conditions: Conditions | None) -> list[str]:
    """What rules were tuned for, and what the tuner noticed."""
    if conditions is None:
        return []
    drift = conditions.drift if conditions.drift and conditions.drift >= DRIFTED else None
    noticed = [f"the machine drifted by a factor of {drift:.2f} meanwhile"] if drift else []
    return [*filter(None, [str(conditions)]), *map(finding_told, conditions.findings), *noticed]


def finding_told(finding: Finding) -> str:
    """A guideline that does not hold, for a person."""
    return (
        f"{units.size(finding.bytes)} takes {finding.ratio:.2f} times ({finding.low:.2f} to {finding.high:.2f}) "
        f"as long as {finding.guideline}"
    )


def row(rule: Rule) -> tuple[str, ...]:
    end = "" if rule.max_bytes is None else units.size(rule.max_bytes)
    gain = rule.native_us / rule.median_us if rule.native_us and rule.median_us else None
    second = ""
    if rule.runner_up and rule.runner_up.median_us is not None and rule.median_us:
        name = str(Candidate(rule.runner_up.algorithm, tuple(sorted(rule.runner_up.params.items()))))
        over = rule.runner_up.over_best
        second = f"{name} {(over[1] if over else rule.runner_up.median_us / rule.median_us) - 1:+.0%}"
    return (
        f"{units.size(rule.min_bytes)} .. {end}",
        str(Candidate(rule.algorithm, tuple(sorted(rule.params.items())))),
        units.size(rule.measured_bytes) if rule.measured_bytes is not None else "-",
        units.time(rule.median_us),
        f"{units.time(rule.low_us)} to {units.time(rule.high_us)}" if rule.low_us is not None else "not measured",
        units.time(rule.native_us),
        f"{gain:5.2f}x {bar(gain)}" if gain else "-",
        second,
    )


def bar(gain: float) -> str:
    eighths = round(min(gain, LONGEST) / LONGEST * BAR * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")
