"""Prove that schedules keep their contract, for numbers of ranks and shapes of nodes. Needs no MPI and no ranks."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from collectives import contract
from collectives.algorithms import SEGMENT_BYTES, Algorithm, every
from collectives.verify import Fault, verify
from tuner import units
from tuner.commands.common import UsageError, add_json, note, print_json, value
from tuner.space import Candidate, candidate

Nodes = list[list[int]]
LABEL = 84  # characters of an algorithm with its parameters


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=value(units.parse_counts), default="1-17", metavar="LIST", help="1-17, 2,4,8")
    parser.add_argument(
        "--nodes", type=value(units.parse_shapes), default="2x2,2x3,3x4,3+1", metavar="SHAPES",
        help="of several nodes: 2x3 is 2 nodes of 3 ranks, 3+1 a node of 3 and one of 1 (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--collective", choices=contract.COLLECTIVES, help="one of %(choices)s (default: all)")
    parser.add_argument("--algorithms", metavar="A,B", help="names of algorithms (default: all)")
    add_json(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class Row:
    """One proof, or what it found wrong. `bytes_sent`: by the rank that sends most, in lengths of the message."""

    collective: str
    algorithm: str
    ranks: int
    nodes: str
    ok: bool
    rounds: int | None = None
    bytes_sent: float | None = None
    order: str | None = None  # "fixed" where all ranks are folded in order, else the name of the tree
    fault: str | None = None


def run(args: argparse.Namespace) -> int:
    chosen = select(args.collective, args.algorithms)
    rows = []
    for algorithm in chosen:
        mine = [prove(algorithm, each, nodes) for nodes in places(args) for each in settings(algorithm, nodes)]
        rows += mine
        if not args.json:
            show(algorithm, mine)
    wrong = [row for row in rows if not row.ok]
    if args.json:
        print_json({"ok": not wrong, "rows": [public(row) for row in rows]})
    else:
        print(f"{len(rows) - len(wrong)} of {len(rows)} proofs hold")
    if not rows:
        note("nothing was proved: no chosen algorithm serves these ranks")
    return 1 if wrong or not rows else 0


def select(collective: str | None, names: str | None) -> list[Algorithm]:
    chosen = list(every(collective))
    if names is None:
        return chosen
    wanted = [name.strip() for name in names.split(",")]
    there = {algorithm.name for algorithm in chosen}
    for name in wanted:
        if name not in there:
            of = f"{collective} has" if collective else "there is"
            raise UsageError(f"--algorithms: {of} no {name!r}; there are {', '.join(sorted(there))}")
    return [algorithm for algorithm in chosen if algorithm.name in wanted]


def places(args: argparse.Namespace) -> Iterator[Nodes]:
    """Each number of ranks on one node, and each shape of several."""
    yield from ([list(range(ranks))] for ranks in args.ranks)
    yield from args.nodes


def settings(algorithm: Algorithm, nodes: Nodes) -> Iterator[Candidate]:
    """Plain, as a pipeline, and with each choice of the other parameters."""
    ranks = sum(map(len, nodes))
    if algorithm.refusal(ranks, nodes) or (len(nodes) > 1 and not algorithm.needs_nodes):
        return
    other: list[dict[str, Any]] = [{}]
    for parameter in algorithm.parameters:
        if parameter.name not in (SEGMENT_BYTES.name, "slots"):
            other = [{**setting, parameter.name: choice} for setting in other for choice in parameter.choices]
    for setting in other:
        yield candidate(algorithm.name, setting)
        if algorithm.pipelined:
            yield candidate(algorithm.name, {**setting, SEGMENT_BYTES.name: 1 << 16, "slots": 2})


def prove(algorithm: Algorithm, setting: Candidate, nodes: Nodes) -> Row:
    ranks = sum(map(len, nodes))
    key = (algorithm.collective, str(setting), ranks, units.shape_name(map(len, nodes)))
    try:
        schedules = algorithm.schedules(ranks, nodes=nodes, **setting.params)
        report = verify(schedules, contract.contract(algorithm.collective, ranks), segments=3 if setting.items else 1)
    except Fault as fault:
        return Row(*key, ok=False, fault=str(fault))
    order = "fixed" if report.canonical else report.hash
    return Row(*key, ok=True, rounds=report.rounds, bytes_sent=float(report.sent), order=order)


def public(row: Row) -> dict[str, Any]:
    return {name: found for name, found in vars(row).items() if name != "fault" or found is not None}


def show(algorithm: Algorithm, rows: list[Row]) -> None:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.algorithm, []).append(row)
    for name, group in groups.items():
        wrong = [row for row in group if not row.ok]
        label = f"{algorithm.collective} {name}"
        state = "FAULT" if wrong else "ok"
        most = max((row.rounds or 0) for row in group)
        fixed = "fixed order" if all(row.order == "fixed" for row in group) else ""
        print(f"{label:{LABEL}} {state:5} {len(group):3} proofs, at most {most:3} rounds  {fixed}".rstrip(), flush=True)
        for row in wrong:
            print(f"    {row.ranks} ranks on {row.nodes}: {row.fault}", flush=True)
