"""Prove that schedules keep their contract, for numbers of ranks and shapes of nodes. Needs no MPI and no ranks."""

import argparse
import os
from collections import Counter
from contextlib import nullcontext
from itertools import groupby
from operator import itemgetter
from textwrap import indent
from typing import Any

from collectives import contract, nest
from collectives.proof.mutants import mutants
from collectives.proof.sweep import EVERY_SHAPE, cases, prove
from tuner import terminal, units
from tuner.commands.common import UsageError, add_json, note, positive, print_json, value
from tuner.progress import progress
from tuner.space import candidate
from tuner.terminal import BAD, GOOD

ALWAYS = ("collective", "algorithm", "ranks", "nodes", "ok", "rounds", "bytes_sent", "order", "params", "hash")
LABEL = 84  # characters of an algorithm with its parameters
EXAMPLES = """
  treering verify
  treering verify --ranks 1-9 --algorithms ring,swing
  treering verify --nodes 2x4,3+1 --collective allreduce
  treering verify --mutants 5000                            # who proves the verifier?
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=value(units.parse_counts), default="1-17", metavar="LIST", help="1-17, 2,4,8")
    parser.add_argument(
        "--nodes", type=value(units.parse_shapes), metavar="SHAPES",
        help="of several nodes: 2x3 is 2 nodes of 3 ranks, 3+1 a node of 3 and one of 1, 2x2x3 two racks of 2x3 "
             "(default: twenty shapes, and nine of more levels)",
    )  # fmt: skip
    parser.add_argument(
        "--collective", choices=contract.COLLECTIVES, metavar="NAME", help="one of %(choices)s (default: all)"
    )
    parser.add_argument("--algorithms", metavar="A,B", help="names of algorithms (default: all)")
    parser.add_argument("--jobs", type=value(positive), metavar="N", help="processes (default: one a processor)")
    parser.add_argument(
        "--mutants", type=value(positive), metavar="N",
        help="prove the verifier instead: N schedules with one edit, each of which it must refuse, unless it is right",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the mutants (default: %(default)s)")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.mutants:
        if given := next((flag for flag in ("algorithms", "collective", "nodes") if getattr(args, flag)), None):
            raise UsageError(f"--{given} is not for --mutants, which are drawn from all algorithms; leave it out")
        return run_mutants(args)
    wanted = args.algorithms.split(",") if args.algorithms is not None else None
    jobs = args.jobs or len(os.sched_getaffinity(0))
    try:
        names = wanted and [name.strip() for name in wanted]
        chosen = args.collective, args.ranks, args.nodes or EVERY_SHAPE, names
        many = len({(case.collective, case.algorithm) for case in cases(*chosen)})
        proofs, rows = map(readable, prove(*chosen, jobs)), []
        # What is printed as it is proved is progress enough.
        with progress("proving") if args.json else nullcontext(lambda *_: None) as told:
            by_algorithm = groupby(proofs, key=itemgetter("collective", "algorithm"))
            for done, ((collective, name), group) in enumerate(by_algorithm, 1):
                mine = list(group)
                rows += mine
                told(done / many, f"{collective} {name}")
                for setting in dict.fromkeys(row["setting"] for row in mine) if not args.json else ():
                    show(f"{collective} {setting}", [row for row in mine if row["setting"] == setting])
    except ValueError as error:
        raise UsageError(f"--algorithms: {error}") from error
    wrong = [row for row in rows if not row["ok"]]
    if args.json:
        print_json({"ok": not wrong, "rows": [public(row) for row in rows]})
    else:
        print(f"{len(rows) - len(wrong)} of {len(rows)} proofs hold")
    if not rows:
        note("nothing was proved: no chosen algorithm serves these ranks")
    return 1 if wrong or not rows else 0


def run_mutants(args: argparse.Namespace) -> int:
    found = []
    with progress("mutants") as told:
        for mutant in mutants(args.mutants, args.seed):
            found.append(mutant)
            told(len(found) / args.mutants, mutant.algorithm)
    missed = [m for m in found if m.wrong]
    counts = [(ends, kind, Counter(m.outcome for m in found if (m.ends, m.kind) == (ends, kind)))
              for ends, kind in sorted({(m.ends, m.kind) for m in found})]  # fmt: skip
    if args.json:
        each = [{"ends": ends, "kind": kind, **outcomes} for ends, kind, outcomes in counts]
        print_json({"ok": not missed, "mutants": len(found), "rows": each, "missed": [m._asdict() for m in missed]})
        return 1 if missed else 0
    print("edit       ends   refused   right all the same   missed")
    for ends, kind, outcomes in counts:
        print(f"{kind:10} {ends:4} {outcomes['refused']:9} {outcomes['right']:20} {outcomes['missed']:8}")
    for m in missed:
        print(f"    {m.algorithm}, {m.kind} at {m.ends} ends: {m.wrong}")
    print(f"{len(found) - len(missed)} of {len(found)} mutants of {len({m.algorithm for m in found})} algorithms "
          f"are refused, or compute the right thing")  # fmt: skip
    return 1 if missed else 0


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """A proof with the shape of its nodes, and its algorithm with parameters, as people write them."""
    setting = str(candidate(row["algorithm"], row["params"]))
    return row | {"nodes": nest.name(row["nodes"] or [range(row["ranks"])]), "setting": setting}


def public(row: dict[str, Any]) -> dict[str, Any]:
    """What is printed as JSON; `root` where the collective has one, `error` where there is one."""
    return {name: row[name] for name in ALWAYS} | {
        name: row[name] for name in ("root", "error", "exchange") if row[name] is not None
    }


def show(label: str, rows: list[dict[str, Any]]) -> None:
    wrong = [row for row in rows if not row["ok"]]
    state, most = "FAULT" if wrong else "ok", max((row["rounds"] or 0) for row in rows)
    fixed = "fixed order" if all(row["order"] == "fixed" for row in rows) else ""
    found = f" {len(rows):3} proofs, at most {most:3} rounds  {fixed}".rstrip()
    terminal.show(f"{label:{LABEL}} ", (f"{state:5}", BAD if wrong else GOOD), found)
    for row in wrong:
        terminal.show(f"    {row['ranks']} ranks on {row['nodes']}: {row['error']}")
        if row["exchange"]:
            terminal.show(indent(row["exchange"], " " * 8))
