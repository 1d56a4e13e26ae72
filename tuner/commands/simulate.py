"""Predict times on a topology that you do not have: the best algorithm by size, link loads, where the best changes.

Costs of links come from a network's file (--network), from a tuning table (--table), or are typical ones. Needs no MPI
and no ranks.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from collectives import contract
from collectives.errors import UnsupportedError
from collectives.foresight.foresee import Foreseen, Foresight
from collectives.foresight.network import TYPICAL, Network, load, of_links
from tuner import units
from tuner.commands.common import UsageError, add_json, add_sizes, note, picture, print_json, value
from tuner.progress import progress
from tuner.space import Candidate, candidate, space

MOST_MESSAGES = 120_000  # simulated for a setting that nobody has named: some seconds
LOADED = 0.005  # shares of time below this are not shown
EXAMPLES = """
  treering simulate --nodes 64 --ranks-per-node 8
  treering simulate --table table.json --nodes 1-16 --ranks-per-node 2,4 --plot best.png
  treering simulate --network cluster.json --sizes 16MiB --algorithms double_tree:segment_bytes=64K
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=value(units.parse_counts), metavar="LIST", help="how many: 512, 1-8, 2,4,8")
    parser.add_argument("--ranks-per-node", type=value(units.parse_counts), metavar="LIST", help="8, 1-8, 2,4,8")
    parser.add_argument("--network", type=Path, metavar="FILE", help="the topology and the costs of its links")
    parser.add_argument("--table", type=Path, metavar="FILE", help="take the costs that `treering tune` has measured")
    parser.add_argument("--collective", choices=contract.COLLECTIVES, metavar="NAME", default="allreduce",
                        help="one of %(choices)s (default: %(default)s)")  # fmt: skip
    parser.add_argument("--algorithms", default="all", metavar="A,B",
                        help="names, with parameters or without: ring:slots=2,two_shot (default: all)")  # fmt: skip
    add_sizes(parser, "8:16M:8")
    parser.add_argument("--plot", type=value(picture), metavar="FILE",
                        help="draw times, or of several topologies what is best where (.png, .svg, .pdf)")  # fmt: skip
    add_json(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class Row:
    """One prediction."""

    nodes: int
    ranks_per_node: list[int]
    bytes: int
    found: Foreseen

    @property
    def candidate(self) -> Candidate:
        return candidate(self.found.algorithm, self.found.params)

    @property
    def shape(self) -> str:
        return units.shape_name(self.ranks_per_node)


def run(args: argparse.Namespace) -> int:
    rows, asked = [], networks(args)
    with progress("simulating") as told:
        for place, network in enumerate(asked):
            for row in predictions(args, network):
                rows.append(row)
                done = (args.sizes.index(row.bytes) + 1) / len(args.sizes)
                told((place + done) / len(asked), f"{row.candidate} on {row.shape}, {units.size(row.bytes)}")
    best = [min(group, key=lambda row: row.found.us) for _, group in groupby(rows, key=lambda r: (r.shape, r.bytes))]
    if args.json:
        print_json({"rows": list(map(public, rows)), "best": list(map(public, best))})
    else:
        show(args, rows, best)
    if args.plot:
        draw(args, rows, best)
    if not rows:
        note("nothing was simulated: no chosen algorithm serves these ranks")
    return 0 if rows else 1


def networks(args: argparse.Namespace) -> list[Network]:
    """The network that the flags name, at each of the shapes asked for."""
    try:
        base = start(args)
        if not args.nodes and not args.ranks_per_node:
            return [base]
        sizes = base.sizes
        if not args.ranks_per_node and len(set(sizes)) > 1:
            raise ValueError(f"--nodes: the nodes of {base.shape} have no common number of ranks; add --ranks-per-node")
        found = [base.resized(n, r) for n in args.nodes or [base.nodes] for r in args.ranks_per_node or [sizes[0]]]
    except ValueError as error:
        raise UsageError(str(error)) from None
    return found


def start(args: argparse.Namespace) -> Network:
    if args.network and args.table:
        raise UsageError("--network contradicts --table: both say what links cost; leave one out")
    if args.network:
        return load(args.network)
    if args.table:
        from collectives.selection import load as load_table

        table = load_table(args.table)
        if not table.links:
            raise UsageError(
                f"--table {args.table} has no costs of links; tune again with this version, or use --network"
            )
        starts = [range(size) for size in table.topology.ranks_per_node]
        return of_links(table.links, starts)
    if not args.nodes or not args.ranks_per_node:
        raise UsageError("which topology? add --nodes and --ranks-per-node, or a file with --network or --table")
    note("links have typical costs, since neither --network nor --table says what they are")
    return TYPICAL


def predictions(args: argparse.Namespace, network: Network) -> Iterator[Row]:
    """By size; a setting that would take long is left out unless it was named, with a word about it."""
    foresight, left = Foresight(network), dict[str, None]()
    for nbytes in args.sizes:
        messages = dict[str, int]()
        for each, named in wanted(args, network, nbytes):
            segment = each.params.get("segment_bytes")
            many = messages.get(each.algorithm, 0) * min(48, -(-nbytes // segment)) if segment else 0
            if many > MOST_MESSAGES and not named:
                left[each.algorithm] = None
                continue
            try:
                found = foresight.predict(args.collective, each.algorithm, nbytes, **each.params)
            except UnsupportedError as error:
                if named:
                    raise
                note(f"{each}: {error}")
                continue
            messages.setdefault(each.algorithm, found.messages)  # the plain one comes first
            yield Row(network.nodes, network.sizes, nbytes, found)
    for name in left:
        note(f"{name} on {network.shape}: its pipelines take long to simulate; name one: {name}:segment_bytes=65536")


def wanted(args: argparse.Namespace, network: Network, nbytes: int) -> list[tuple[Candidate, bool]]:
    """Candidates at a size, and whether the command line names each with its parameters."""
    from tuner.commands.bench import chosen_algorithms

    nodes, groups = network.placed, network.nest
    try:
        if args.algorithms == "all":
            return [(each, False) for each in space(args.collective, nodes, nbytes, groups=groups).every()]
        named = chosen_algorithms(args)
        found = [(each, True) for each in named if each.items]
        plain = [each.algorithm for each in named if not each.items]
        if plain:
            found += [
                (each, False) for each in space(args.collective, nodes, nbytes, groups=groups, only=plain).every()
            ]
    except ValueError as error:
        raise UsageError(f"--algorithms: {error}") from None
    return found


# What is shown


def public(row: Row) -> dict[str, Any]:
    found = row.found
    each = row.ranks_per_node
    return {
        "nodes": row.nodes, "ranks_per_node": each[0] if len(set(each)) == 1 else each, "bytes": row.bytes,
        "algorithm": found.algorithm, "params": row.candidate.params, "predicted_us": round(found.us, 3),
        "low_us": None if found.low_us is None else round(found.low_us, 3),
        "high_us": None if found.high_us is None else round(found.high_us, 3),
        "loads": {kind: round(share, 4) for kind, share in found.busy.items()},
    }  # fmt: skip


def show(args: argparse.Namespace, rows: Sequence[Row], best: Sequence[Row]) -> None:
    by_shape = {shape: list(group) for shape, group in groupby(best, key=lambda row: row.shape)}
    for shape, winners in by_shape.items():
        print(f"{args.collective} on {shape} ranks")
        for row in winners:
            second = runner_up(rows, row)
            after = f"{second.candidate} {second.found.us / row.found.us - 1:+.0%}" if second else ""
            low, high = row.found.low_us, row.found.high_us
            between = f"{units.time(low)} to {units.time(high)}" if low is not None else ""
            columns = f"{row.candidate!s:60} {units.time(row.found.us):>9}  {between:20}  {loads(row.found.busy):48}"
            print(f"{units.size(row.bytes):>10}  {columns}  {after}".rstrip())
    if len(by_shape) > 1:
        print(f"\n{'':>12}" + "".join(f"{units.size(nbytes):>20}" for nbytes in args.sizes))
        for shape, winners in by_shape.items():
            print(f"{shape:>12}" + "".join(f"{row.found.algorithm:>20}" for row in winners))


def runner_up(rows: Sequence[Row], best: Row) -> Row | None:
    """The best of another algorithm."""
    others = [row for row in rows if (row.shape, row.bytes) == (best.shape, best.bytes)
              and row.found.algorithm != best.found.algorithm]  # fmt: skip
    return min(others, key=lambda row: row.found.us, default=None)


def loads(busy: Mapping[str, float]) -> str:
    seen = sorted(busy.items(), key=lambda item: -item[1])
    return ", ".join(f"{kind} {share:.0%}" for kind, share in seen if share > LOADED)


def draw(args: argparse.Namespace, rows: Sequence[Row], best: Sequence[Row]) -> None:
    try:
        from tuner.plot_simulated import curves, regions
    except ImportError as error:
        raise UsageError(f"--plot needs matplotlib ({error}); pip install 'treering[plot]'") from None
    several = len({row.shape for row in rows}) > 1
    try:
        regions(args.collective, best, args.plot) if several else curves(args.collective, rows, best, args.plot)
    except OSError as error:
        raise UsageError(f"--plot {args.plot}: {error.strerror}; name a file that can be written") from None
    note(f"wrote {args.plot}")
