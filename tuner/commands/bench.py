"""Time treering, the MPI library's own collective and Gloo, interleaved in one run on freshly written data in place."""

import argparse
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from collectives.dtypes import ITEMSIZE
from tuner import units
from tuner.commands import common
from tuner.contenders import AUTOMATIC, gloo_lacks, native_lacks
from tuner.formats import FORM, Row
from tuner.space import BASELINE, Candidate, candidate
from tuner.statistics import median_interval

CONTENDERS = ("treering", "native", "gloo")
FIRST_BLOCKS, ROUND_BLOCKS, MOST_BLOCKS = 5, (5, 200), 1000
SECONDS = 1.0  # for each size, unless --budget says otherwise
WIDTH = 0.01  # half an interval, relative to its median, that is narrow enough
EXAMPLES = """
  treering bench -n 4
  treering bench -n 4 --table table.json --sizes 1K,64K,1MiB --contenders treering,native
  treering bench -n 4 --algorithms ring:segment_bytes=64K,two_shot --sizes 16M
  treering bench -n 2 --dtype bfloat16 --op avg --format csv > bench.csv
"""


def add(parser: argparse.ArgumentParser) -> None:
    common.add_ranks(parser)
    common.add_call(parser)
    common.add_sizes(parser, "8:16M:4")
    parser.add_argument("--algorithms", default="tuned", metavar="A,B",
                        help="tuned (by the table), all, or names: ring:slots=2,two_shot")  # fmt: skip
    parser.add_argument("--contenders", default="treering,native,gloo", metavar="A,B", help="(default: %(default)s)")
    parser.add_argument("--format", choices=FORM, help="one of %(choices)s (default: table)")
    parser.add_argument("--budget", type=common.value(units.parse_duration), metavar="TIME",
                        help="for measuring all sizes (default: a second for each)")  # fmt: skip
    parser.add_argument("--table", metavar="FILE", help="a tuning table (default: TREERING_TABLE)")
    common.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    common.check_call(args)
    if args.json and args.format not in (None, "json"):
        raise common.UsageError(f"--json contradicts --format {args.format}; leave one of them out")
    form = "json" if args.json else args.format or "table"
    contenders = chosen_contenders(args)
    candidates = chosen_algorithms(args)
    common.check_settings(args.table)
    world = common.enter_ranks(args)
    import collectives
    from tuner.measure import GLOO, Session

    with collectives.Communicator(world, table=args.table) as comm:
        session = Session(world, comm)
        if world.rank:
            session.follow()
            session.close()
            return 0
        try:
            together = candidates * ("treering" in contenders) + [BASELINE] * ("native" in contenders)
            rows = measure(args, session, together) if together else []
            if "gloo" in contenders:
                rows += measure(args, session, [GLOO])
        finally:
            session.stop()
            session.close()
        rows.sort(key=lambda row: (row.bytes, CONTENDERS.index(row.contender)))
        print(FORM[form](rows, context(args, comm)), end="", flush=True)
        return 1 if not rows or any(row.wrong for row in rows) else 0


def chosen_contenders(args: argparse.Namespace) -> list[str]:
    wanted = [name.strip() for name in args.contenders.split(",")]
    for name in wanted:
        if name not in CONTENDERS:
            raise common.UsageError(f"--contenders: {name!r} is none; there are {', '.join(CONTENDERS)}")
    reasons = {
        "native": native_lacks(args.dtype, args.op, args.collective),
        "gloo": gloo_lacks(args.collective, args.dtype, args.op),
    }
    for name, reason in reasons.items():
        if name in wanted and reason:
            wanted.remove(name)
            if common.is_first():
                common.note(f"without {name}: {reason}")
    if not wanted:
        raise common.UsageError("--contenders: nobody is left to time; add treering")
    return wanted


def chosen_algorithms(args: argparse.Namespace) -> list[Candidate]:
    """tuned, all, or names with parameters; a `name=value` belongs to the algorithm before it."""
    from collectives.algorithms import every, find
    from collectives.selection import parse_overrides

    text = args.algorithms.strip()
    if text in ("tuned", ""):
        return [AUTOMATIC]
    if text == "all":
        return [candidate(algorithm.name) for algorithm in every(args.collective)]
    entries: list[str] = []
    for part in text.split(","):
        if entries and "=" in part and ":" not in part:
            entries[-1] += f",{part}"
        else:
            entries.append(part)
    try:
        parsed = [parse_overrides(f"{args.collective}={entry}")[args.collective] for entry in entries]
        for name, params in parsed:
            find(args.collective, name).check(**params)
    except ValueError as error:
        raise common.UsageError(f"--algorithms: {error}") from None
    return [candidate(name, params) for name, params in parsed]


def measure(args: argparse.Namespace, session: Any, contenders: Sequence[Candidate]) -> list[Row]:
    from tuner.progress import progress

    rows = []
    whole = args.budget or SECONDS * len(args.sizes)
    until = monotonic() + whole
    with progress("bench") as told:
        for place, nbytes in enumerate(args.sizes):
            share = max(0.0, until - monotonic()) / (len(args.sizes) - place)
            rows += measure_size(args, session, contenders, nbytes, share)
            told((place + 1) / len(args.sizes), units.size(nbytes))
    return rows


def measure_size(
    args: argparse.Namespace, session: Any, contenders: Sequence[Candidate], nbytes: int, seconds: float
) -> list[Row]:
    from tuner.measure import Job

    times: dict[Candidate, list[float]] = {}
    until, blocks, done = monotonic() + seconds, FIRST_BLOCKS, 0
    while True:
        outcome = session.measure(Job(
            collective=args.collective, dtype=args.dtype, op=args.op, nbytes=nbytes, blocks=blocks, seed=session.jobs,
            candidates=[(each.algorithm, each.params) for each in contenders], stage="bench", check=True,
        ))  # fmt: skip
        for each, us in outcome.times.items():
            times.setdefault(each, []).extend(us)
        done += blocks
        for each, fault in outcome.faults.items():
            common.note(f"{each} at {units.size(nbytes)} was left out: {fault}")
        contenders = [each for each in contenders if each in outcome.times]
        left = until - monotonic()
        narrow = all(median_interval(times[each]).relative_width < WIDTH for each in contenders) and done >= 30
        if not contenders or left <= 0 or done >= MOST_BLOCKS or narrow:
            break
        blocks = max(ROUND_BLOCKS[0], min(ROUND_BLOCKS[1], int(left / 2 / max(outcome.block_seconds, 1e-6))))
    return [row(args, session, each, nbytes, us, outcome.wrong.get(each, 0)) for each, us in times.items()]


def row(args: argparse.Namespace, session: Any, each: Candidate, nbytes: int, us: list[float], wrong: int) -> Row:
    comm = session.comm
    contender = each.algorithm if each.algorithm in ("native", "gloo") else "treering"
    algorithm, params = each.algorithm, each.params
    if each == AUTOMATIC:
        choice = comm.explain(args.collective, nbytes=nbytes, dtype=args.dtype, op=args.op)
        algorithm, params = choice.algorithm, dict(choice.params)
    interval = median_interval(us)
    bandwidth = nbytes / interval.median / 1e3 if interval.median else 0.0
    return Row(
        args.collective, nbytes, nbytes // ITEMSIZE[args.dtype], args.dtype, args.op, comm.size,
        len(comm.topology.nodes), contender, algorithm, params, round(interval.median, 3), round(interval.low, 3),
        round(interval.high, 3), round(bandwidth, 4), round(bandwidth * factor(args.collective, comm.size), 4), wrong,
    )  # fmt: skip


def factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests has it."""
    share = (ranks - 1) / ranks
    return {"allreduce": 2 * share, "reduce": 1.0, "broadcast": 1.0}.get(collective, share)


def context(args: argparse.Namespace, comm: Any) -> dict[str, Any]:
    import collectives

    topology = comm.topology
    return {
        "treering": collectives.__version__, "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "python": platform.python_version(), "cpu": topology.cpu, "cores": len(os.sched_getaffinity(0)),
        "mpi": topology.mpi, "ranks_per_node": list(topology.ranks_per_node), "links": list(topology.links),
        "table": args.table or os.environ.get("TREERING_TABLE"), "in_place": True,
        "time": "largest over ranks; median and its 95 % interval; input freshly written before each call",
    }  # fmt: skip
