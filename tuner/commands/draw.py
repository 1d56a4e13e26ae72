"""Draw an algorithm's schedule, as text or as SVG. Needs no MPI and no ranks."""

import argparse
from pathlib import Path

from collectives import contract, nest
from collectives.algorithms import every
from tuner import units
from tuner.commands.common import UsageError, add_json, positive, print_json, value
from tuner.space import candidate

MOST = 256  # ranks
EXAMPLES = """
  treering draw ring --ranks 4
  treering draw hierarchical --nodes 2x3 --output hierarchical.svg
  treering draw double_tree:segment_bytes=64K --collective broadcast --ranks 8
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("algorithm", metavar="ALGORITHM", help="ring, or ring:segment_bytes=65536,slots=2")
    parser.add_argument(
        "--collective", choices=contract.COLLECTIVES, metavar="NAME", help="one of %(choices)s (default: where it is)"
    )
    parser.add_argument("--ranks", type=value(positive), metavar="RANKS", help="how many (default: 4)")
    parser.add_argument(
        "--nodes", type=value(units.parse_shapes), metavar="SHAPE", help="of the nodes: 2x2, 3+1, 2x2x2"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write it there, as SVG if it ends in .svg (default: print)"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from collectives.selection import parse_overrides

    name = args.algorithm.partition(":")[0]
    having = [a.collective for a in every(args.collective) if a.name == name]
    if not having:
        there = sorted({algorithm.name for algorithm in every(args.collective)})
        raise UsageError(f"{name!r} is not an algorithm; there are {', '.join(there)}")
    if args.nodes and len(args.nodes) > 1:
        raise UsageError("--nodes: one shape can be drawn at a time; write 2x2")
    nodes = args.nodes[0] if args.nodes else [list(range(args.ranks or 4))]
    ranks = nest.count(nodes)
    if args.ranks and args.ranks != ranks:
        raise UsageError(f"--ranks {args.ranks} contradicts --nodes, which has {ranks} ranks; leave one of them out")
    if ranks > MOST:
        raise UsageError(f"a drawing of {ranks} ranks is not readable; draw at most {MOST}")
    collective = having[0]
    try:
        _, params = parse_overrides(f"{collective}={args.algorithm}")[collective]
        (algorithm,) = (a for a in every(collective) if a.name == name)
        schedules = algorithm.schedules(ranks, nodes=nodes, **params)
    except ValueError as error:
        raise UsageError(str(error)) from None
    from collectives import draw, svg

    label = str(candidate(name, params))
    as_svg = args.output is not None and args.output.suffix == ".svg"
    text = svg.svg(schedules, f"{collective} {label}, {ranks} ranks") if as_svg else draw.text(schedules) + "\n"
    if args.json:
        drawn = draw.text(schedules)
        print_json({"collective": collective, "algorithm": label, "ranks": ranks, "text": drawn, "doc": algorithm.doc})
    elif args.output:
        try:
            args.output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--output {args.output}: {error.strerror}; name a file that can be written") from None
    else:
        print(text, end="")
    return 0
