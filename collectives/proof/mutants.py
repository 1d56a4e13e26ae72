"""Proves the verifier: schedules with one edit must be refused, or compute the right thing all the same."""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from collectives import nest
from collectives.algorithms import Algorithm, every
from collectives.contract import ROOTED, Contract, contract
from collectives.nest import shape
from collectives.proof.mutate import edited, mutate
from collectives.proof.reference import Wrong, check
from collectives.proof.sweep import settings
from collectives.schedule import Schedule
from collectives.verify import Fault, verify

SIZES = (3, 4, 6)
NODES = ("2x2", "3+1", "2+3+1", "2x2x2", "(2+1)+(1x2)")


class Mutant(NamedTuple):
    """One edit of one step or lane (`ends` 1), or the same at both ends of a message (`ends` 2)."""

    algorithm: str  # with its collective
    ends: int
    kind: str
    fault: str | None  # why the verifier refuses it
    wrong: str | None  # what it computes wrong though it is not refused: a fault that has been missed

    @property
    def outcome(self) -> str:
        return "missed" if self.wrong else "refused" if self.fault else "right"


def mutants(count: int, seed: int = 0) -> Iterator[Mutant]:
    """So many, of all algorithms in turn, one-ended and two-ended in turn."""
    random = Random(seed)
    supplies = [(a, cases(a, random)) for a in every()]
    for made in range(count):
        algorithm, supply = supplies[made % len(supplies)]
        yield mutant(algorithm, supply, random, 1 + made // len(supplies) % 2)


def cases(algorithm: Algorithm, random: Random) -> Iterator[tuple[list[Schedule], Contract]]:
    """An endless supply of schedules and their contracts."""
    while True:
        fit = [nodes for nodes in map(shape, NODES) if not algorithm.lack(nest.count(nodes), nodes)]
        nodes = random.choice(fit) if algorithm.needs_nodes else None
        p = nest.count(nodes) if nodes else random.choice([p for p in SIZES if not algorithm.lack(p)])
        root = random.randrange(p) if algorithm.collective in ROOTED else 0
        params = random.choice(list(settings(algorithm)))
        yield algorithm.schedules(p, nodes=nodes, root=root, **params), contract(algorithm.collective, p, root)


def mutant(
    algorithm: Algorithm, supply: Iterator[tuple[list[Schedule], Contract]], random: Random, ends: int
) -> Mutant:
    """The next that differs from what it was made of."""
    label = f"{algorithm.collective} {algorithm.name}"
    while True:
        schedules, promise = next(supply)
        kind, made = mutate(random, schedules, ends)
        if made != edited(schedules, {}):
            break
    try:
        report = verify(made, promise)
    except Fault as fault:
        return Mutant(label, ends, kind, str(fault), None)
    try:
        for segments in (1, 4):
            count, seed = random.randrange(20, 60), random.randrange(1000)
            check(made, promise, count, segments=segments, canonical=report.canonical, seed=seed)
    except Wrong as wrong:
        return Mutant(label, ends, kind, None, f"{wrong}, with {segments} segments of {count} elements, seed {seed}")
    return Mutant(label, ends, kind, None, None)
