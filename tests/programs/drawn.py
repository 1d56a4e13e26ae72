"""A call for contract.py, drawn by a seed that all ranks share; and its making."""

from dataclasses import dataclass
from random import Random
from typing import Any

import collectives
from collectives.algorithms import Algorithm, every
from collectives.contract import ROOTED
from collectives.dtypes import HALVES

SEGMENTS = (None, None, 8, 64, 200, 4096, 65536)


def serving(comm: collectives.Communicator, collective: str) -> list[str]:
    """The algorithms that serve these ranks."""
    return [a.name for a in every(collective) if not a.refusal(comm.size, a.groups(comm.topology))]


@dataclass
class Case:
    algorithm: Algorithm
    params: dict[str, Any]
    dtype: str
    op: str
    count: int
    root: int
    seed: int
    way: str  # in place, out of place, without waiting, planned
    precision: str | None

    def __str__(self) -> str:
        what = f"{self.algorithm.collective} {self.algorithm.name} {self.params} {self.op} of {self.count} {self.dtype}"
        return f"{what}, root {self.root}, seed {self.seed}, {self.way}, {self.precision}"

    @property
    def how(self) -> dict[str, Any]:
        return {"algorithm": self.algorithm.name, "precision": self.precision, **self.params}


def draw_count(random: Random, size: int, algorithm: Algorithm) -> int:
    few = (0, 1, size - 1, size, size + 1, 31, 127, 129, 1009, 4099)
    return random.choice((*few, *few, 20_011 if algorithm.collective != "allgather" else 40_009))


def draw(random: Random, algorithm: Algorithm, size: int, dtype: str, op: str) -> Case:
    params = {p.name: random.choice(p.choices) for p in algorithm.parameters}
    count = draw_count(random, size, algorithm)
    if algorithm.pipelined:
        params["segment_bytes"] = random.choice(SEGMENTS)
        if params["segment_bytes"] and params["segment_bytes"] < 200:
            count = min(count, 1009)
    return Case(
        algorithm,
        params,
        dtype,
        op,
        count,
        random.randrange(size) if algorithm.collective in ROOTED else 0,
        random.randrange(1 << 30),
        random.choice(["in place", "out of place", "without waiting", "planned"]),
        random.choice([None, "fast", "accurate"]) if algorithm.collective == "allreduce" else None,
    )


def run(comm: collectives.Communicator, collective: str, case: Case, x: Any, *args: Any, **more: Any) -> Any:
    """The collective, in the case's way."""
    if case.way == "planned" and (case.precision != "accurate" or case.dtype not in HALVES):
        planned = {name: value for name, value in case.how.items() if name != "precision" or value}
        plan = comm.plan(collective, x, *args, **more, **planned)
        return plan()
    method = getattr(comm, collective)
    if case.way == "without waiting":
        return method(x, *args, **more, **case.how, blocking=False).wait()
    return method(x, *args, **more, **case.how)
