"""The simulator against measurement: how far its times lie from measured ones, and what its choice would cost.

    python -m benchmarks.foresight -n 2 [--sizes 8:16M] [--seconds 60] [--json FILE] [--from FILE]
    python -m benchmarks.foresight --bed 2x1 --sizes 1K:4M:4         # on hosts, as benchmarks.hosts makes them

Candidates that the tuner might try are timed at every size, interleaved, as `treering tune` does. Costs of links are
fitted to every second size; what is said of the others is foreseen. Errors are of the predicted time over the measured
one; the regret is how much longer the algorithm that is foreseen as the fastest takes than the one that was.
"""

import argparse
import json
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from mpi4py import MPI

import collectives
from benchmarks.hosts import run_on
from benchmarks.timing import under_ranks
from collectives.algorithms import SLOTS
from collectives.foresight.foresee import Foresight
from collectives.foresight.network import of_links
from tuner import launch, units
from tuner.measure import Job, Session
from tuner.model import Timing, fit
from tuner.space import Candidate, candidate, space

BLOCKS = (3, 200)
GOAL_ERROR, GOAL_ERROR_BETWEEN, GOAL_REGRET, GOAL_SHARE = 0.15, 0.10, 0.10, 0.90


def measured(session: Session, options: argparse.Namespace) -> list[Timing]:
    """Rank 0: the median of every candidate at every size, over rounds, since the machine drifts within minutes."""
    nodes, began, order = session.comm.topology.nodes, monotonic(), random.Random(0)
    spaces = {nbytes: tried(options.collective, nodes, nbytes) for nbytes in options.sizes}
    weight = {nbytes: len(every) * (1 + nbytes / (1 << 17)) ** 0.5 for nbytes, every in spaces.items()}
    times: dict[tuple[int, Candidate], list[list[float]]] = defaultdict(list)
    left = sum(weight.values()) * options.rounds
    for number in range(options.rounds):
        for nbytes in order.sample(options.sizes, len(options.sizes)):
            share = max(0.0, options.seconds - (monotonic() - began)) * weight[nbytes] / left
            left -= weight[nbytes]
            started = monotonic()
            look = timed(session, options.collective, nbytes, spaces[nbytes], 1)
            blocks = int((share - (monotonic() - started)) / max(1e-6, look.block_seconds))
            found = timed(session, options.collective, nbytes, spaces[nbytes], max(BLOCKS[0], min(BLOCKS[1], blocks)))
            for each, us in found.times.items():
                times[nbytes, each].append(us)
        print(f"round {number + 1} of {options.rounds}: {monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return [
        Timing(options.collective, nbytes, each.algorithm, each.params, statistics.median(map(statistics.median, us)))
        for (nbytes, each), us in sorted(times.items(), key=lambda item: item[0][0])
    ]


def tried(collective: str, nodes: Sequence[Sequence[int]], nbytes: int) -> list[Candidate]:
    """What the tuner might try, with the fewest slots and with four of them."""
    return [each for each in space(collective, nodes, nbytes).every() if each.params.get(SLOTS.name, 2) in (2, 4)]


def timed(session: Session, collective: str, nbytes: int, every: Sequence[Candidate], blocks: int) -> Any:
    return session.measure(Job(
        collective=collective, dtype="float32", op="sum", nbytes=nbytes, blocks=blocks, seed=session.jobs,
        candidates=[(each.algorithm, each.params) for each in every], stage="foresight",
    ))  # fmt: skip


def compare(nodes: Sequence[Sequence[int]], timings: Sequence[Timing]) -> dict[str, Any]:
    """Fit, predict, and set both side by side."""
    sizes = sorted({each.nbytes for each in timings})
    fitted = set(sizes[::2])
    links = fit(nodes, [each for each in timings if each.nbytes in fitted])
    foresight = Foresight(of_links(links, nodes))
    errors, regrets, good = defaultdict[tuple[str, bool], list[float]](list), [], list[bool]()
    for nbytes in sizes:
        same = [each for each in timings if each.nbytes == nbytes]
        said = {each: foresight.predict(each.collective, each.algorithm, nbytes, **each.params).us for each in same}
        for each in same:
            errors[each.algorithm, nbytes in fitted].append(said[each] / each.us - 1)
        chosen, best = min(same, key=said.__getitem__), min(same, key=lambda each: each.us)
        regret = round(chosen.us / best.us - 1, 3)
        good.append(regret <= GOAL_REGRET)
        regrets.append({
            "bytes": nbytes, "fitted": nbytes in fitted, "foreseen": name(chosen), "regret": regret,
            "foreseen_us": round(said[chosen], 2), "measured_us": round(chosen.us, 2),
            "best": name(best), "best_us": round(best.us, 2),
        })  # fmt: skip
    held = [abs(e) for (_, known), found in errors.items() if not known for e in found]
    return {
        "links": msgspec.to_builtins(links),
        "median_error": round(statistics.median(held), 3),
        "within_regret": round(sum(good) / len(good), 3),
        "errors": {
            algorithm: round(statistics.median(map(abs, found)), 3)
            for (algorithm, known), found in sorted(errors.items()) if not known
        },
        "sizes": regrets,
    }  # fmt: skip


def name(each: Timing) -> str:
    return str(candidate(each.algorithm, each.params))


def show(found: dict[str, Any], goal: float) -> None:
    for row in found["sizes"]:
        print(f"{units.size(row['bytes']):>10}{' ' if row['fitted'] else '*'} {row['foreseen']:48}"
              f"{units.time(row['foreseen_us']):>9} {units.time(row['measured_us']):>9}  best {row['best']:48}"
              f"{units.time(row['best_us']):>9} {row['regret']:>+7.1%}")  # fmt: skip
    print(", ".join(f"{algorithm} {error:.0%}" for algorithm, error in found["errors"].items()))
    print(f"median error at sizes that were not fitted (*): {found['median_error']:.1%} (goal: {goal:.0%})")
    print(f"regret of at most {GOAL_REGRET:.0%} at {found['within_regret']:.0%} of sizes (goal: {GOAL_SHARE:.0%})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, help="ranks")
    parser.add_argument("--bed", help="ranks on hosts instead, as 2x2 (root, ip and tc)")
    parser.add_argument("--library", default="openmpi", help="that starts ranks on hosts (default: %(default)s)")
    parser.add_argument("--rate", default="1gbit", help="of each host's link, each way (default: %(default)s)")
    parser.add_argument("--collective", default="allreduce")
    parser.add_argument("--sizes", type=units.parse_sizes, default="8:16M", help="bytes")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all sizes")
    parser.add_argument("--rounds", type=int, default=3, help="over all sizes")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--from", type=Path, dest="source", help="take times from such a file instead of measuring")
    options = parser.parse_args()
    if options.source:
        known = json.loads(options.source.read_text())
        give(options, known["topology"], known["nodes"], [Timing(**each) for each in known["timings"]])
        return 0
    if options.bed and launch.announced() is None:
        done = run_on(options.bed, options.library, ["-m", "benchmarks.foresight", *sys.argv[1:]], options.rate, 600)
        print(done.stdout, end="")
        return 0
    if (status := under_ranks(options.n, "benchmarks.foresight")) is not None:
        return status
    with collectives.Communicator() as comm:
        session = Session(MPI.COMM_WORLD.Dup(), comm)
        if comm.rank:
            session.follow()
            session.close()
            return 0
        try:
            timings = measured(session, options)
        finally:
            session.stop()
            session.close()
        give(options, comm.topology.fingerprint, comm.topology.nodes, timings)
    return 0


def give(options: argparse.Namespace, topology: str, nodes: Any, timings: Sequence[Timing]) -> None:
    found = compare(nodes, timings)
    print(topology)
    show(found, GOAL_ERROR if len(nodes) == 1 else GOAL_ERROR_BETWEEN)
    if options.json:
        kept = {"topology": topology, "nodes": [list(node) for node in nodes], **found,
                "timings": [asdict(each) for each in timings]}  # fmt: skip
        options.json.write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    sys.exit(main())
