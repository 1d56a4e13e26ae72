"""Topologies, rules and tables for tests."""

from dataclasses import dataclass
from typing import Any

from collectives.selection import Table
from collectives.tables.conditions import Conditions, Finding
from collectives.tables.table import LinkCost, Place, Rule, RunnerUp


@dataclass(frozen=True)
class Topology:
    nodes: tuple[tuple[int, ...], ...]
    fingerprint: str

    @property
    def ranks_per_node(self) -> tuple[int, ...]:
        return tuple(len(node) for node in self.nodes)


TWO = Topology(((0, 1),), "1x2")
FOUR = Topology(((0, 1, 2, 3),), "1x4")
SQUARE = Topology(((0, 1), (2, 3)), "2x2")


def rule(low, high, algorithm="ring", **more):
    given = {"collective": "allreduce", "dtype": "float", "op": "arithmetic", **more}
    return Rule(**given, min_bytes=low, max_bytes=high, algorithm=algorithm)


def table(*rules, place=None):
    place = place or Place(nodes=1, ranks_per_node=[2], links=["shared-memory"], cpu="a", mpi="b", fingerprint="1x2")
    return Table(treering="0.1.0", created="2026-01-01", topology=place, rules=list(rules))


def rich_table():
    """One of everything that a table may hold."""
    over = (1.5, 1.75, 2.0)
    best: dict[str, Any] = {"algorithm": "recursive_doubling", "params": {}, "median_us": 2.5, "over_best": over}
    timed: dict[str, Any] = {
        "measured_bytes": 4096,
        "median_us": 1.5,
        "low_us": 1.25,
        "high_us": 2.0,
        "native_us": 1.75,
    }
    made = table(
        rule(5793, None, "ring", params={"segment_bytes": 65536, "slots": 2, "spin": None, "eager": True, "gain": 0.5}),
        rule(0, 5792, "one_shot", **timed, runner_up=RunnerUp(**best)),
        rule(0, None, "halving_doubling", dtype="half", op="any"),
        rule(0, None, "binomial_tree", collective="broadcast", dtype="any", op="any"),
    )
    made.links = [LinkCost(class_="shared-memory", alpha_us=0.5, beta_us_per_MiB=100, gamma_us_per_MiB=20.5)]
    made.samples = "table.samples.jsonl"
    found = Finding(guideline="native", bytes=64, ratio=1.5, low=1.25, high=2.0)
    key: dict[str, Any] = {"collective": "allreduce", "dtype": "float", "op": "arithmetic"}
    made.tuned = [Conditions(**key, deterministic=True, price=1.25, objective="p95", findings=[found])]
    return made
