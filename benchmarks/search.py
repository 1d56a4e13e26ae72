"""The tuner against an exhaustive search: how near to the best is what it chooses, and what does it save?

    python -m benchmarks.search tune --seed 1      `treering tune`; for two tunings also with --seed 2
    python -m benchmarks.search exhaustive         a stretch of it; again until it says that all is measured
    python -m benchmarks.search compare            a stretch: what was chosen, the best and the default, side by side
    python -m benchmarks.search show [--json FILE] what came of it, and which of the project's goals are met
    python -m benchmarks.search whole [--json FILE] all of these, one after the other: half an hour or more

Each stretch of measuring takes about --seconds and leaves its samples in --folder, where the next one goes on. The
exhaustive search times every candidate that the tuner might try, all of a size interleaved, until each is known as well
as the tuner wants to know its finalists (half an interval of 1 %, or 400 blocks). The best is who is fastest in the
comparison, of the exhaustive search's six fastest and of the tunings' choices. Measuring time is that within calls.
"""

import argparse
import json
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from mpi4py import MPI

import collectives
from benchmarks.peers_plot import machine
from benchmarks.timing import shown, under_ranks
from collectives.selection import default, load
from tuner import units
from tuner.decision import SIGNIFICANT, Constraints
from tuner.measure import Job, Session, read_samples
from tuner.race import MOST_BLOCKS
from tuner.space import BASELINE, Candidate, candidate, space
from tuner.statistics import Interval, geometric_mean, holm, median_interval, ratio_interval, signed_rank
from tuner.storage import open_samples

CALL: dict[str, Any] = {"collective": "allreduce", "dtype": "float32", "op": "sum"}
ROUND = 40  # blocks of a size at a time: making all candidates ready, and checking them, takes as long
COMPARED = 120  # blocks of a comparison
FINALISTS = 6  # of the exhaustive search
DONE = "all is measured"
NEAR, SHARE, SIZES = 1.05, 0.25, 0.95  # goals: within 5 % of the best at 95 % of sizes, in a quarter of the time
Times = dict[int, dict[Candidate, list[float]]]  # by size


def tune(options: argparse.Namespace) -> int:
    command = [
        sys.executable, "-m", "tuner.cli", "tune", "-n", str(options.n), "--sizes", options.sizes,
        "--budget", options.budget, "--seed", str(options.seed),
        "--output", str(options.folder / f"tuned-{options.seed}.json"),
    ]  # fmt: skip
    return subprocess.run(command, check=False).returncode


def times_of(path: Path) -> Times:
    """Microseconds from a file of samples, blocks in their order, so that those of one size are paired."""
    found: Times = defaultdict(lambda: defaultdict(list))
    for line in read_samples(path) if path.exists() else []:
        found[line["bytes"]][candidate(line["algorithm"], line["params"])] += line["us"]
    return found


def every(nodes: Sequence[Sequence[int]], sizes: Sequence[int]) -> dict[int, list[Candidate]]:
    return {nbytes: space(CALL["collective"], nodes, nbytes).every() for nbytes in sizes}


def known(times: Mapping[Candidate, list[float]]) -> bool:
    """Whether all candidates of a size are known well enough."""
    blocks = min(map(len, times.values()), default=0)
    narrow = blocks >= ROUND and all(median_interval(us).relative_width < Constraints().width for us in times.values())
    return blocks >= MOST_BLOCKS or narrow


def finalists(options: argparse.Namespace, nodes: Any, nbytes: int, exhaustive: Times) -> list[Candidate]:
    """Who is compared at a size: the tunings' choices first, then the default, the fastest of all, and the baseline."""
    chosen = [*tuned(options, nbytes), as_candidate(default(nodes, CALL["collective"], nbytes))]
    fastest = sorted(exhaustive[nbytes], key=lambda each: median_interval(exhaustive[nbytes][each]).median)
    return list(dict.fromkeys([*chosen, *fastest[:FINALISTS], BASELINE]))


def tuned(options: argparse.Namespace, nbytes: int) -> list[Candidate]:
    """What each table chooses."""
    rules = [load(path).find(CALL["collective"], nbytes, CALL["dtype"], CALL["op"]) for path in tables(options)]
    return [candidate(rule.algorithm, rule.params) for rule in rules if rule is not None]


def tables(options: argparse.Namespace) -> list[Path]:
    return sorted(options.folder.glob("tuned-*.json"))


def as_candidate(choice: Any) -> Candidate:
    return candidate(choice.algorithm, choice.params)


def stretch(options: argparse.Namespace, session: Session, times: Times) -> bool:
    """Rank 0: measure for options.seconds, sizes in random order, whole rounds over them; whether all is done."""
    topology, began, order = session.comm.topology, monotonic(), random.Random(len(times))
    sizes = units.parse_sizes(options.sizes)
    if options.what == "exhaustive":
        wanted = every(topology.nodes, sizes)
    else:
        exhaustive = times_of(options.folder / "exhaustive.jsonl")
        wanted = {nbytes: finalists(options, topology, nbytes, exhaustive) for nbytes in sizes}
    while True:
        left = [nbytes for nbytes in sizes if not finished(options.what, times[nbytes])]
        least = min((blocks_of(times[nbytes]) for nbytes in left), default=0)
        if not left:
            return True
        for nbytes in order.sample(left, len(left)):
            if blocks_of(times[nbytes]) > least:
                continue
            if monotonic() - began > options.seconds:
                return False
            job = Job(**CALL, nbytes=nbytes, blocks=ROUND, seed=session.last_job + session.jobs, stage=options.what,
                      candidates=[(each.algorithm, each.params) for each in wanted[nbytes]])  # fmt: skip
            for each, us in session.measure(job).times.items():
                times[nbytes][each] += us


def finished(what: str, times: Mapping[Candidate, list[float]]) -> bool:
    return known(times) if what == "exhaustive" else blocks_of(times) >= COMPARED


def blocks_of(times: Mapping[Candidate, list[float]]) -> int:
    return min(map(len, times.values()), default=0)


def measure(options: argparse.Namespace) -> int:
    if (status := under_ranks(options.n, "benchmarks.search")) is not None:
        return status
    path = options.folder / f"{options.what}.jsonl"
    with collectives.Communicator() as comm:
        samples, last = open_samples(path, lambda _: False) if comm.rank == 0 else (None, 0)
        session = Session(MPI.COMM_WORLD.Dup(), comm, samples, last)
        if comm.rank:
            session.follow()
            return 0
        about = {"topology": comm.topology.fingerprint, "nodes": comm.topology.nodes}
        (options.folder / "about.json").write_text(json.dumps(about))
        try:
            done = stretch(options, session, times_of(path))
        finally:
            session.stop()
        print(DONE if done else "there is more to measure: once more")
    return 0


@dataclass(frozen=True)
class Row:
    """One size: the tunings' choices against the best, the default, and each other (paired ratios)."""

    nbytes: int
    choices: list[str]
    best: str
    default: str
    best_us: float
    over_best: list[Interval]
    over_default: list[Interval]
    slower_than_default: list[bool]
    apart: Interval | None
    candidates: int


def rows(options: argparse.Namespace) -> list[Row]:
    compared, exhaustive = times_of(options.folder / "compare.jsonl"), times_of(options.folder / "exhaustive.jsonl")
    nodes = json.loads((options.folder / "about.json").read_text())["nodes"]

    class Here:
        pass

    Here.nodes = nodes  # type: ignore[attr-defined]
    found, tests = [], []
    for nbytes in sorted(compared):
        times = compared[nbytes]
        plain = as_candidate(default(Here, CALL["collective"], nbytes))  # type: ignore[arg-type]
        choices = tuned(options, nbytes)
        best = min((each for each in times if each != BASELINE), key=lambda each: median_interval(times[each]).median)
        tests += [signed_rank(times[plain], times[each]) for each in choices]
        found.append((nbytes, times, plain, choices, best))
    corrected = iter(holm(tests))
    made = []
    for nbytes, times, plain, choices, best in found:
        over = [ratio_interval(times[each], times[plain]) for each in choices]
        slower = [next(corrected) < SIGNIFICANT and each.low > 1 for each in over]
        apart = ratio_interval(times[choices[0]], times[choices[1]]) if len(choices) == 2 else None
        made.append(Row(
            nbytes, list(map(str, choices)), str(best), str(plain), median_interval(times[best]).median,
            [ratio_interval(times[each], times[best]) for each in choices], over, slower, apart,
            len(exhaustive[nbytes]),
        ))  # fmt: skip
    return made


def seconds(path: Path) -> float:
    """Within calls, on ordinary memory."""
    return sum(sum(line["us"]) for line in read_samples(path) if line["storage"] == "ordinary") / 1e6


def show(options: argparse.Namespace) -> int:
    found = rows(options)
    names = [path.stem for path in tables(options)]
    for row in found:
        print(f"{units.size(row.nbytes):>9} best of {row.candidates:3} {row.best:44}{units.time(row.best_us):>9}")
        for place, name in enumerate(names):
            against = f"over best {shown(row.over_best[place])}, over default {shown(row.over_default[place])}"
            late = "  SLOWER than the default" if row.slower_than_default[place] else ""
            print(f"{name:>20} {row.choices[place]:44} {against}{late}")
    whole, goals = seconds(options.folder / "exhaustive.jsonl"), []
    blocks = [blocks_of(times) for times in times_of(options.folder / "exhaustive.jsonl").values()]
    for place, name in enumerate(names):
        near = sum(row.over_best[place].median <= NEAR for row in found)
        apart = geometric_mean(row.over_best[place].median for row in found)
        share = seconds(options.folder / f"{name}.samples.jsonl") / whole
        goals += [
            (f"{name}: within 5 % of the best at 95 % of sizes", near >= SIZES * len(found),
             f"{near} of {len(found)}; {apart:.3f} times the best in the geometric mean"),
            (f"{name}: at most a quarter of the exhaustive search's measuring time", share <= SHARE, f"{share:.2f}"),
            (f"{name}: slower than the default at no size", not any(row.slower_than_default[place] for row in found),
             f"{sum(row.slower_than_default[place] for row in found)} of {len(found)}"),
        ]  # fmt: skip
    if len(names) == 2:
        same = sum(row.apart is not None and 1 / NEAR <= row.apart.median <= NEAR for row in found)
        goals.append(("two tunings within 5 % of each other at 95 % of sizes", same >= SIZES * len(found),
                      f"{same} of {len(found)}"))  # fmt: skip
    for what, met, figure in goals:
        print(f"{'met    ' if met else 'not met'} {what}: {figure}")
    print(f"the exhaustive search took {whole:.0f} s within calls, {min(blocks)} to {max(blocks)} blocks of each size")
    if options.json:
        about = json.loads((options.folder / "about.json").read_text())
        content = {"context": machine() | {"topology": about["topology"]}, "goals": [list(goal) for goal in goals],
                   "exhaustive": {"seconds": round(whole, 1), "blocks": [min(blocks), max(blocks)]},
                   "tunings": names, "rows": [asdict(row) for row in found]}  # fmt: skip
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


def whole(options: argparse.Namespace) -> int:
    """Two tunings, all stretches, and what came of them, each by a process of its own."""
    flags = [*("-n", str(options.n)), *("--sizes", options.sizes), *("--folder", str(options.folder))]
    command = [sys.executable, "-m", "benchmarks.search"]
    for seed in ("1", "2"):
        subprocess.run([*command, "tune", *flags, "--budget", options.budget, "--seed", seed], check=True)
    for what in ("exhaustive", "compare"):
        said = ""
        while DONE not in said:
            stretch = [*command, what, *flags, "--seconds", str(options.seconds)]
            said = subprocess.run(stretch, check=True, stdout=subprocess.PIPE, text=True).stdout
            print(f"{what}: {said}", end="", flush=True)
    return show(options)


WHAT = {"whole": whole, "tune": tune, "exhaustive": measure, "compare": measure, "show": show}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("-n", type=int, default=2, help="ranks")
    parser.add_argument("--sizes", default="8:16M", help="bytes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of a tuning, and in its file's name")
    parser.add_argument("--budget", default="60s", help="of a tuning (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a stretch (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("build/search"), help="of samples (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, and the machine, there")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    return WHAT[options.what](options)


if __name__ == "__main__":
    sys.exit(main())
