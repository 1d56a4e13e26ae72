"""Say which algorithm would run, and why: on the ranks at hand (-n), or on the topology that a table is for."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from collectives.contract import REDUCING
from collectives.selection import Choice, Table, choose, load, parse_overrides
from collectives.sizes import parse_size
from collectives.tables.table import ORDINARY, STORAGES
from tuner import units
from tuner.commands.common import (
    UsageError,
    add_call,
    add_json,
    add_ranks,
    check_call,
    check_settings,
    enter_ranks,
    print_json,
    value,
)

EXAMPLES = """
  treering explain -n 4 --bytes 1MiB
  treering explain --table table.json --collective broadcast --bytes 64K
  treering explain --table table.json --storage symmetric --dtype bfloat16 --op avg
"""


def add(parser: argparse.ArgumentParser) -> None:
    add_ranks(parser)
    add_call(parser)
    parser.add_argument(
        "--bytes",
        type=value(parse_size),
        default="1M",
        metavar="SIZE",
        help="of the message (default: %(default)s)",
    )
    parser.add_argument("--storage", choices=STORAGES, default=ORDINARY,
                        help="memory of the call: ordinary, or symmetric (default: %(default)s)")  # fmt: skip
    parser.add_argument("--table", metavar="FILE", help="a tuning table (default: TREERING_TABLE)")
    add_json(parser)
    parser.set_defaults(run=run, sizes=())


def run(args: argparse.Namespace) -> int:
    check_call(args)
    path = args.table or os.environ.get("TREERING_TABLE")
    check_settings(path)
    table = load(path) if path and not Path(path).is_dir() else None
    world = enter_ranks(args, required=table is None)
    choice = without_ranks(args, table) if world is None else with_ranks(args, path, world)
    if world is None or world.rank == 0:
        if args.json:
            print_json(public(choice))
        else:
            print(text(args, choice))
    return 0


def with_ranks(args: argparse.Namespace, path: str | None, world: Any) -> Choice:
    import collectives

    with collectives.Communicator(world, table=path) as comm:
        op = args.op if args.collective in REDUCING else None
        choice: Choice = comm.explain(
            args.collective, nbytes=args.bytes, dtype=args.dtype, storage=args.storage, **({"op": op} if op else {})
        )
        return choice


@dataclass(frozen=True)
class There:
    """The topology that a table was measured on, as far as selection needs it."""

    nodes: tuple[tuple[int, ...], ...]
    fingerprint: str

    @property
    def ranks_per_node(self) -> tuple[int, ...]:
        return tuple(map(len, self.nodes))


def without_ranks(args: argparse.Namespace, table: Table | None) -> Choice:
    if table is None:
        raise UsageError("which ranks? add -n RANKS, or a table's with --table FILE")
    sizes = table.topology.ranks_per_node
    starts = [sum(sizes[:node]) for node in range(len(sizes))]
    nodes = tuple(tuple(range(start, start + size)) for start, size in zip(starts, sizes, strict=True))
    fixed = parse_overrides(os.environ.get("TREERING_ALGORITHM", ""))
    if args.collective in fixed:
        name, params = fixed[args.collective]
        return Choice(name, params, source="environment", why="TREERING_ALGORITHM names it")
    op = args.op if args.collective in REDUCING else None
    place = There(nodes, table.topology.fingerprint)
    return choose(table, place, args.collective, args.bytes, args.dtype, op, storage=args.storage)


def public(choice: Choice) -> dict[str, Any]:
    fields = ("algorithm", "params", "rule", "runner_up", "margin", "margin_bounds", "origin", "basis", "reason")
    return {field: msgspec.to_builtins(getattr(choice, field)) for field in fields}


def text(args: argparse.Namespace, choice: Choice) -> str:
    params = ", ".join(f"{name}={given}" for name, given in choice.params.items())
    call = f"{args.collective} of {units.size(args.bytes)} {args.dtype}"
    lines = [
        f"{call}{f' {args.op}' if args.collective in REDUCING else ''}, {args.storage} memory:",
        f"  {choice.algorithm}{f' ({params})' if params else ''}",
        f"  origin     {choice.origin}",
        f"  because    {choice.reason}",
    ]
    if choice.rule:
        lines.append(f"  rule       {choice.rule}")
        if choice.rule.median_us is not None:
            low, high = units.time(choice.rule.low_us), units.time(choice.rule.high_us)
            at = f" at {units.size(choice.rule.measured_bytes)}" if choice.rule.measured_bytes is not None else ""
            tail = f", 95 % of calls within {units.time(choice.rule.p95_us)}" if choice.rule.p95_us is not None else ""
            lines.append(f"  measured   {units.time(choice.rule.median_us)} ({low} to {high}){at}{tail}")
        if choice.rule.native_us is not None:
            lines.append(f"  native     {units.time(choice.rule.native_us)}")
    if choice.runner_up:
        margin = f", {choice.margin:+.1%}" if choice.margin is not None else ""
        if choice.margin_bounds is not None:
            margin += " ({:+.1%} to {:+.1%})".format(*choice.margin_bounds)
        lines.append(f"  runner-up  {choice.runner_up.algorithm} {units.time(choice.runner_up.median_us)}{margin}")
    return "\n".join(lines)
