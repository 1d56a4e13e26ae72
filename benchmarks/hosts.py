"""treering across hosts: beside Open MPI's and MPICH's own allreduce, Gloo, and a raw two-way TCP stream.

    python -m benchmarks.hosts [--beds 2x1,2x2,2x2/turns,4x1] [--libraries mpich,openmpi] [--sizes 8:16M:8]
                               [--contenders "treering hierarchical:leaders=one ring"] [--rate 1gbit] [--seconds 2]
                               [--rounds 2] [--json FILE]
    python -m benchmarks.hosts --from FILE... [--json FILE]      # what several runs found, together

Hosts are network namespaces of this machine (tests/hosts), with rate-limited links; making them needs root, ip and tc.
2x2/turns has the hosts take turns in the order of the ranks. Within a launch all contenders take turns in random order,
in place, on an input that its rank has just written, and all ranks begin at one instant. Printed are medians of the
slowest rank, in microseconds, paired ratios with their 95 % interval, and which of the project's goals are met.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers_plot import machine
from tests import launch
from tests.hosts.bed import Bed, NoBed, environment
from tuner.statistics import Interval, geometric_mean, ratio_interval
from tuner.units import parse_sizes

BEDS = "2x1,2x2,2x2/turns,4x1"
CONTENDERS = (
    "treering hierarchical hierarchical:inner=halving_doubling hierarchical:leaders=one "
    "hierarchical:segment_bytes=262144,slots=4 ring ring:segment_bytes=262144,slots=4"
)
REFERENCES = ("library", "gloo", "wire")
LARGE = 4 << 20  # bytes from which the wire's limit is a goal
WIRE, LIBRARY, GLOO = 1.12, 1.5, 1.3  # times the wire's limit; times faster, in the geometric mean at 2x2


def launched(bed: str, name: str, told: Mapping[str, Any], rate: str, limit: float) -> dict[str, Any]:
    """What the ranks of one launch found. RuntimeError where it failed."""
    with tempfile.TemporaryDirectory(prefix="treering-hosts-") as folder:
        into, told_in = Path(folder, "found.json"), Path(folder, "told.json")
        told_in.write_text(json.dumps({**told, "into": str(into)}), encoding="utf-8")
        run_on(bed, name, ["-m", "benchmarks.hosts_ranks", str(told_in)], rate, limit)
        return {"bed": bed, "library": name, **json.loads(into.read_text(encoding="utf-8"))}


def run_on(bed: str, name: str, program: list[str], rate: str, limit: float) -> subprocess.CompletedProcess[str]:
    """A Python program as ranks of a library on a bed of hosts. RuntimeError where it failed."""
    shape, _, order = bed.partition("/")
    counts = [int(each) for each in shape.split("+")] if "+" in shape else per_host(shape)
    hosts = {f"h{number}": count for number, count in enumerate(counts, 1)}
    library = launch.find(name)
    assert library is not None
    with Bed(list(hosts), rate) as made:
        listed = ",".join(f"{host}:{count}" for host, count in hosts.items())
        command = made.launch(name, library.mpiexec, listed, [library.python, *program], in_turn=order == "turns")
        done = launch.run_command(command, library.environment(environment(name)), timeout=limit)
        if done.returncode:
            raise RuntimeError(launch.describe(command, done.returncode, done.stdout, done.stderr, limit=5000))
        return done


def per_host(shape: str) -> list[int]:
    hosts, _, ranks = shape.partition("x")
    return [int(ranks)] * int(hosts)


def rows(launches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One for each size of each launch: medians, and ratios of ours to what was timed beside it."""
    found = []
    for each in launches:
        for case in each["cases"]:
            times = case["times"]
            ours = [name for name in times if name not in REFERENCES]
            found.append({
                "bed": each["bed"], "library": each["library"], "bytes": case["bytes"], "choice": case["choice"],
                "repetitions": len(times["wire"]), "us": {name: round(median(us), 1) for name, us in times.items()},
                "ratio": {
                    name: {other: asdict(ratio_interval(times[name], times[other])) for other in REFERENCES}
                    for name in ours
                },
            })  # fmt: skip
    return found


def goals(found: list[dict[str, Any]]) -> list[tuple[str, bool, str]]:
    """What is to be reached, whether it is, and the figure. Where a case was measured in rounds, the better counts."""

    def ratios(other: str, **where: Any) -> dict[tuple[Any, ...], list[Interval]]:
        cases: dict[tuple[Any, ...], list[Interval]] = {}
        for row in found:
            if "treering" in row["ratio"] and all(row[key] in value for key, value in where.items()):
                key = row["bed"], row["library"], row["bytes"]
                cases.setdefault(key, []).append(Interval(**row["ratio"]["treering"][other]))
        return cases

    made = []
    large = [size for size in {row["bytes"] for row in found} if size >= LARGE]
    if wire := ratios("wire", bytes=large, bed=["2x1", "2x2", "2x2/turns", "4x1"]):
        worst = max(wire, key=lambda key: min(each.median for each in wire[key]))
        figure = min(each.median for each in wire[worst])
        made.append((f"from 4 MiB at most {WIRE} times the wire's limit", figure <= WIRE, f"{figure:.3f} at {worst}"))
    if library := ratios("library"):
        slower = [key for key, each in library.items() if all(ratio.low > 1 for ratio in each)]
        said = ", ".join(map(str, slower)) or f"0 of {len(library)} cases"
        made.append(("never slower than the MPI library's own", not slower, said))
    for other, times in (("library", LIBRARY), ("gloo", GLOO)):
        for bed in ("2x2", "2x2/turns"):
            for name in ("mpich", "openmpi"):
                if cases := ratios(other, bed=[bed], library=[name]):
                    mean = 1 / geometric_mean(median(ratio.median for ratio in each) for each in cases.values())
                    what = f"{bed} on {name}: {times} times faster than {other} in the geometric mean"
                    made.append((what, mean >= times, f"{mean:.2f}"))
    return made


def show(found: list[dict[str, Any]]) -> None:
    for row in found:
        about = f"{row['bytes']} bytes ({row['repetitions']} times; default {row['choice']})"
        print(f"{row['bed']} {row['library']} {about}")
        for name, us in sorted(row["us"].items(), key=lambda item: item[1]):
            against = row["ratio"].get(name, {})
            said = "  ".join(f"{o} {r['median']:.3f} [{r['low']:.3f}, {r['high']:.3f}]" for o, r in against.items())
            print(f"  {name:44} {us:12.1f}  {said}")


def measured(options: argparse.Namespace) -> tuple[list[dict[str, Any]], int]:
    """What every launch found, and how many failed."""
    told = {"sizes": options.sizes, "contenders": options.contenders.split(), "seconds": options.seconds}
    limit = 120 + 15 * options.seconds * len(options.sizes)
    cases = [(bed, name) for bed in options.beds.split(",") for name in options.libraries.split(",")]
    launches, failed = [], 0
    for number in range(options.rounds):
        for bed, name in random.Random(number).sample(cases, len(cases)):
            print(f"round {number + 1} of {options.rounds}: {bed} on {name}", file=sys.stderr, flush=True)
            try:
                launches.append(launched(bed, name, told, options.rate, limit))
            except NoBed:
                raise
            except (RuntimeError, launch.Hang) as error:
                print(error, file=sys.stderr, flush=True)
                failed += 1
    return launches, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # fmt: off
    parser.add_argument("--beds", default=BEDS, help="ranks on hosts: 2x2, 3+1, 2x2/turns (default: %(default)s)")
    parser.add_argument("--libraries", default="mpich,openmpi", help="default: %(default)s")
    parser.add_argument("--sizes", type=parse_sizes, default="8:16M:8", help="bytes (default: %(default)s)")
    parser.add_argument("--contenders", default=CONTENDERS, help="default: %(default)s")
    parser.add_argument("--rate", default="1gbit", help="of each host's link, each way (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2, help="for a size in a launch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="launches of each case (default: %(default)s)")
    parser.add_argument("--from", type=Path, nargs="+", dest="files", help="what --json wrote, not a run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, and the machine, there")
    # fmt: on
    options = parser.parse_args()
    if options.files:
        contents = [json.loads(file.read_text(encoding="utf-8")) for file in options.files]
        found, failed = [row for content in contents for row in content["rows"]], 0
        context = contents[0]["context"]
    else:
        try:
            launches, failed = measured(options)
        except NoBed as error:
            parser.exit(1, f"no hosts here: {error}\n")
        found = rows(launches)
        context = machine() | {"rate": options.rate, "seconds": options.seconds, "rounds": options.rounds}
    show(found)
    reached = goals(found)
    for what, met, figure in reached:
        print(f"{'met    ' if met else 'not met'} {what}: {figure}")
    if options.json:
        content = {"context": context, "goals": [list(goal) for goal in reached], "rows": found}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
