"""Say what this machine and this launch offer, what is wrong, and the mend. With -n, ranks are tried too."""

import argparse
from dataclasses import asdict

from collectives.flight import records
from collectives.flight.report import jobs, report
from tuner import checks, launch
from tuner.commands.common import add_json, add_ranks, enter_ranks, note, print_json
from tuner.terminal import BAD, GOOD, show

EXAMPLES = """
  treering doctor
  treering doctor -n 4
  treering doctor --hosts node1:2,node2:2
  treering doctor --dump                                    # who waits for whom in my jobs
  treering doctor --clean
"""


def add(parser: argparse.ArgumentParser) -> None:
    add_ranks(parser)
    parser.add_argument("--dump", action="store_true", help="only show what running and ended jobs of yours are at")
    parser.add_argument("--clean", action="store_true", help="remove what ended runs left in shared memory")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.dump:
        return dump(args.json)
    said = launch.announced()
    first = said is None or said[2] == 0
    if first and args.clean:
        for path in checks.clean():
            note(f"removed {path}")
    alone = lone_worlds(said)
    world = None if alone else enter_ranks(args, required=False)
    found = list(checks.machine()) if first else []
    if alone:
        found.append(alone)
    if world is not None and world.size > 1:
        found += checks.ranks(world)
    if not first:
        return 0
    ok = all(check.ok for check in found)
    if args.json:
        print_json({"ok": ok, "checks": [asdict(check) for check in found]})
    else:
        for check in found:
            state = ("ok   ", GOOD) if check.ok else ("WRONG", BAD)
            show(state, f"  {check.name:18}  {check.found}")
            if check.mend:
                show(f"{'':27}-> {check.mend}")
        show(("all is well", GOOD) if ok else ("mend what is WRONG", BAD))
    return 0 if ok else 1


def dump(as_json: bool) -> int:
    """The flight recorder's report of each job whose records are there."""
    reports = [report(job, history=True) for job in jobs(each for _, each in records.found() if each is not None)]
    if as_json:
        print_json({"reports": reports})
    else:
        print("\n\n".join(reports) or "no job of yours has records here: it ended in order, or on another machine")
    return 0


def lone_worlds(said: tuple[str, int, int] | None) -> checks.Check | None:
    """The check that fails where several processes were started and MPI sees each alone."""
    if said is None or said[1] < 2:
        return None
    wrong = launch.foreign_launcher()
    if wrong is None:
        from mpi4py import MPI

        wrong = launch.worlds_of_one(MPI.COMM_WORLD.size)
        if wrong is None:
            return None
    found, _, mend = wrong.partition("; ")
    return checks.Check("launch", False, found, mend)
