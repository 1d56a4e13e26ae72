"""What it costs to choose an algorithm: by a table's rules, with a proof of the order, and not at all within a plan.

    python -m benchmarks.lookup [--rules 40] [--json FILE]

Nanoseconds a choice, the median of 21 loops of 20,000 on sizes drawn at random; no ranks are started. A call that is
made again is not chosen again: its plan keeps the choice, and `benchmarks.overhead` has the whole call.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from collectives.selection import choose
from collectives.tables.table import LinkCost, Place, Rule, RunnerUp, Table

LOOP, LOOPS = 20_000, 21


@dataclass(frozen=True)
class Topology:
    nodes: tuple[tuple[int, ...], ...] = ((0, 1),)
    fingerprint: str = "1x2"

    @property
    def ranks_per_node(self) -> tuple[int, ...]:
        return tuple(map(len, self.nodes))


def table(rules: int) -> Table:
    """Intervals that double from 8 bytes on."""
    ends = [(0 if k == 0 else 8 << k, None if k + 1 == rules else (16 << k) - 1) for k in range(rules)]
    second = RunnerUp(algorithm="two_shot", median_us=2.0, over_best=(1.5, 2.0, 2.5))
    made = [
        Rule(collective="allreduce", dtype="float", op="arithmetic", min_bytes=low, max_bytes=high,
             algorithm=("one_shot", "ring")[k % 2], median_us=1.0, runner_up=second)
        for k, (low, high) in enumerate(ends)
    ]  # fmt: skip
    links = [LinkCost(class_="shared-memory", alpha_us=0.5, beta_us_per_MiB=100, gamma_us_per_MiB=20.5)]
    return Table(topology=Place(nodes=1, ranks_per_node=[2], fingerprint="1x2"), links=links, rules=made).check()


def nanoseconds(choice: Callable[[int], object]) -> float:
    rng, found = random.Random(1), []
    sizes = [rng.randrange(1 << 26) for _ in range(LOOP)]
    for _ in range(LOOPS):
        begin = time.perf_counter_ns()
        for nbytes in sizes:
            choice(nbytes)
        found.append((time.perf_counter_ns() - begin) / LOOP)
    return median(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", type=int, default=40)
    parser.add_argument("--json", help="a file for the figures")
    options = parser.parse_args()
    made, topology, near = table(options.rules), Topology(), Topology(((0, 1, 2, 3),), "1x4")
    doors: dict[str, Callable[[int], object]] = {
        "a rule": lambda nbytes: choose(made, topology, "allreduce", nbytes, "float32", "sum"),
        "a rule, in a fixed order": lambda nbytes: choose(
            made, topology, "allreduce", nbytes, "float32", "sum", deterministic=True
        ),
        "a rule of a table near by": lambda nbytes: choose(made, near, "allreduce", nbytes, "float32", "sum"),
        "a rule, and why": lambda nbytes: choose(made, topology, "allreduce", nbytes, "float32", "sum").reason,
        "no table": lambda nbytes: choose(None, topology, "allreduce", nbytes, "float32", "sum"),
        "nothing (the loop)": lambda nbytes: nbytes,
    }
    rows = [{"choice": name, "ns": round(nanoseconds(choice), 1)} for name, choice in doors.items()]
    for row in rows:
        print(f"{row['choice']:28}{row['ns']:8.0f} ns")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"rules": options.rules, "rows": rows}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
