"""`treering tune --check TABLE`: which of a table's rules no longer hold here."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from collectives.selection import Table, difference, load
from collectives.settings import refused
from collectives.tables.kinship import EXACT, kinship
from tuner import launch, terminal, units
from tuner.commands.common import UsageError, complain, enter_ranks, note, print_json
from tuner.moved import DEFAULT, RUNNER_UP, Finding
from tuner.statistics import Interval


def run(args: argparse.Namespace) -> int:
    path: Path = args.check
    table = load(path).check(path, refused)
    if table.target:
        mend = "`treering export --prove` tries such rules"
        raise UsageError(f"--check {path}: it is for {table.target}'s own collectives; {mend}")
    alone = launch.announced() is None and launch.RANKS not in os.environ
    if alone and not (args.ranks or args.hosts or args.hostfile) and table.topology.nodes == 1:
        args.ranks = table.topology.ranks_per_node[0]
        args.arguments = [*args.arguments, "-n", str(args.ranks)]
    world = enter_ranks(args)
    for name in ("TREERING_TABLE", "TREERING_ALGORITHM"):  # what is measured is named call by call
        os.environ.pop(name, None)
    import collectives
    from tuner.commands.tune import interrupts
    from tuner.measure import Session

    with collectives.Communicator(world) as comm:
        session = Session(world, comm)
        with interrupts(session):
            if world.rank:
                session.follow()
                return 0
            try:
                return lead(args, table, session)
            finally:
                session.stop()


def lead(args: argparse.Namespace, table: Table, session: Any) -> int:
    from tuner.moved import measure, sample
    from tuner.progress import progress

    topology = session.comm.topology
    elsewhere = None if kinship(table, topology) == EXACT else difference(table.topology, topology)
    if elsewhere and not args.json:
        print(f"{args.check} was not measured here: {elsewhere}. This is how its rules do here all the same.\n")
    asked = sample(table, topology, args.seed)
    if not asked:
        raise UsageError(f"--check {args.check}: it has no rules for memory of CPUs")
    with progress(f"checking {args.check}") as told:
        findings, ended = measure(session, asked, args.budget, args.seed, told)
    slower = [each for each in findings if each.slower_than or each.fault]
    if args.json:
        print_json({"table": str(args.check), "elsewhere": elsewhere, "ended": ended, "slower": len(slower),
                    "rules": [public(each) for each in findings]})  # fmt: skip
    else:
        show(findings, len(table.rules))
    if ended:
        complain("tune", f"{ended}; what is shown was measured before")
    elif slower:
        mend = f"treering tune --output {args.check}"
        note(f"{len(slower)} of {len(findings)} rules are slower than they need be; measure anew: {mend}")
    return int(bool(slower or ended))


def public(finding: Finding) -> dict[str, Any]:
    def plain(interval: Interval | None) -> list[float] | None:
        return None if interval is None else [round(x, 4) for x in (interval.median, interval.low, interval.high)]

    return {
        "rule": str(finding.again.rule), "bytes": finding.again.nbytes, "choice": str(finding.again.ours),
        "then_us": finding.again.rule.median_us, "now_us": plain(finding.now), "moved": finding.moved,
        "over": {name: plain(interval) for name, interval in finding.over.items()},
        "slower_than": finding.slower_than, "fault": finding.fault,
    }  # fmt: skip


def show(findings: Sequence[Finding], rules: int) -> None:
    from rich.table import Table as Grid

    console = terminal.console()
    grid = Grid(title=f"{len(findings)} of {rules} rules", title_justify="left", box=None, padding=(0, 2, 0, 0))
    headings = ("rule", "at", "choice", "then", "now", "moved", f"over {DEFAULT}", f"over {RUNNER_UP}", "")
    for heading in headings:
        grid.add_column(heading, justify="right" if heading in ("at", "then", "now", "moved") else "left",
                        overflow="fold")  # fmt: skip
    for each in findings:
        grid.add_row(*row(each))
    console.print(grid)
    moved = [1 + each.moved for each in findings if each.moved is not None]
    if moved:
        console.print(f"times now over times in the table: {geometric_mean(moved):.2f} in the geometric mean")


def row(finding: Finding) -> tuple[str, ...]:
    return (
        str(finding.again.rule),
        units.size(finding.again.nbytes),
        str(finding.again.ours),
        units.time(finding.again.rule.median_us),
        units.time(finding.now.median if finding.now else None),
        f"{finding.moved:+.0%}" if finding.moved is not None else "-",
        *(ratio(finding, name) for name in (DEFAULT, RUNNER_UP)),
        verdict(finding),
    )


def ratio(finding: Finding, name: str) -> str:
    if name not in finding.again.others:
        return "itself" if name == DEFAULT else "-"
    over = finding.over.get(name)
    return f"{over.median:.2f} [{over.low:.2f}, {over.high:.2f}]" if over else "not measured"


def verdict(finding: Finding) -> str:
    if finding.fault:
        return f"CANNOT SERVE: {finding.fault}"
    if finding.now is None:
        return "not measured"
    if not finding.slower_than:
        return "holds"
    worst = max(finding.slower_than, key=lambda name: finding.over[name].median)
    who = finding.again.others[worst]
    return f"SLOWER than its {worst} {who} by {finding.over[worst].median - 1:.0%}"
