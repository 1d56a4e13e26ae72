"""The sweep: every algorithm of a library at every size, screened, then raced against the library's own decision."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import monotonic

from collectives.tables.table import Place, Table
from collectives.topology import mpi_library, processor
from tuner.decision import Measured
from tuner.rules import rules_of
from tuner.space import BASELINE, Candidate
from tuner.statistics import geometric_mean, holm, ratio_interval, signed_rank
from tuner.targets.relaunch import Request, Rounds
from tuner.targets.target import DEFAULT

SCREENING = 2  # rounds of all candidates, if the budget allows; one at least
SCREEN_SHARE = 0.4  # of the budget
LEAST, MOST = 2, 40  # rounds of a race
TELLING = 8  # rounds from which the rank test can tell; with fewer the library's own decision stays everywhere
NEAR = 1.15  # times the best in screening, at some size: may still win there
SIGNIFICANT = 0.05  # chance, over all that race at a size, that what replaces the default is not faster
GAIN = 0.02  # less than this is none


@dataclass
class Found:
    """What a sweep brought: a table's rules come from `sizes`; `gain` is what was there to gain, as measured."""

    sizes: list[Measured]
    rounds: int
    nodes: list[int]
    faults: dict[Candidate, str]

    @property
    def gain(self) -> float:
        """How many times as fast as the library's own decision, in the geometric mean over sizes."""
        ratios = [
            ratio_interval(size.race[DEFAULT], size.race[size.winner]).median if size.winner else 1.0
            for size in self.sizes
        ]
        return geometric_mean(ratios)


def sweep(request: Request, budget: float, seed: int, told: Callable[[float, str], None]) -> Found:
    """Screens all candidates, races the best for the rest of `budget` seconds. Raises Fault where the default fails."""
    began, rng = monotonic(), random.Random(seed)
    candidates = [DEFAULT, *request.target.candidates(request.collective)]
    environments = {each: request.target.forced(request.collective, each) for each in candidates}
    every = Rounds(request, environments, rng)

    def progress(text: str) -> None:
        told(min(1.0, (monotonic() - began) / budget), text)

    for done in range(SCREENING):
        if done == 0 or monotonic() - began < SCREEN_SHARE * budget:
            every.round(progress)
    racing = {each: environments[each] for each in contenders(every)}
    race, rounds = Rounds(request, racing, rng, faults=every.faults), 0
    while rounds < LEAST or (rounds < MOST and monotonic() - began < budget):
        race.round(progress)
        rounds += 1
    return Found(decided(race), rounds, race.looks[DEFAULT][0].nodes, race.faults)


def contenders(screened: Rounds) -> list[Candidate]:
    """The default, and whoever was near the best at some size."""
    kept = [DEFAULT]
    for size in screened.request.sizes:
        ratios = {each: relative(screened, each, size) for each in screened.looks}
        best = min(ratios.values())
        kept += [each for each in sorted(ratios, key=ratios.__getitem__)[:3] if ratios[each] <= NEAR * best]
    return list(dict.fromkeys(kept))


def relative(rounds: Rounds, candidate: Candidate, size: int) -> float:
    """To the default, as the median over rounds."""
    pairs = zip(rounds.us(candidate, size), rounds.us(DEFAULT, size), strict=True)
    return median(ours / default for ours, default in pairs)


def decided(race: Rounds) -> list[Measured]:
    """The default stays unless another is faster beyond the noise, by a rank test over rounds corrected for many."""
    found = []
    for nbytes in race.request.sizes:
        size = Measured(nbytes, DEFAULT, baseline=True)
        size.race = {each: race.us(each, nbytes) for each in race.looks}
        size.race[BASELINE] = size.race[DEFAULT]
        others = [each for each in race.looks if each != DEFAULT]
        chances = holm([signed_rank(size.race[each], size.race[DEFAULT]) for each in others])
        ratios = {each: relative(race, each, nbytes) for each in others}
        better = [
            each for each, chance in zip(others, chances, strict=True)
            if chance < SIGNIFICANT and ratios[each] < 1 - GAIN
        ]  # fmt: skip
        size.winner = min(better, key=ratios.__getitem__, default=DEFAULT)
        found.append(size)
    join(found)
    return found


def join(sizes: Sequence[Measured]) -> None:
    """Where the size below has a winner that is as good here, it serves here too: fewer rules, none of them slower."""
    for below, size in pairwise(sizes):
        guest, host = below.winner, size.winner
        if guest is None or host is None or DEFAULT in (guest, host) or guest == host:
            continue
        if ratio_interval(size.race[guest], size.race[host]).median < 1 + GAIN:
            size.winner = guest


def table_of(request: Request, found: Found, release: str, created: str) -> Table:
    """A table for the library itself: `target` says so, and treering does not follow it."""
    shape, mpi, cpu = found.nodes, mpi_library(), processor()
    place = Place(
        nodes=len(shape), ranks_per_node=shape, cpu=cpu, mpi=mpi,
        fingerprint=f"{'+'.join(map(str, shape))} | {cpu} | {mpi}",
    )  # fmt: skip
    rules = rules_of(request.collective, request.dtype, request.op, found.sizes)
    return Table(treering=release, created=created, topology=place, target=request.target.name, rules=rules).check()
