"""Costs of links from measured times: alpha, beta, gamma and gap of each class, such that the simulator meets them.

A simulated time is piecewise linear in the costs and grows with all of them alike, so it is the sum of the costs times
its derivatives by them. Those are taken at the costs found so far, costs of least relative error are found for them,
and that is repeated. Memory that caches hold is faster than memory that they do not, so a class may have several ranges
of sizes, with costs of their own: as many as lessen the error by more than they are worth.
"""

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from collectives.foresight.fabric import costs_of
from collectives.foresight.foresee import Foresight, Moving
from collectives.foresight.network import MPI, TYPICAL, Network, of_links
from collectives.tables.table import LinkCost

TERMS = ("alpha_us", "beta_us_per_MiB", "gamma_us_per_MiB", "gap_us", "start_us")
BOUNDS = ("alpha_bounds", "beta_bounds", "gamma_bounds")
Costs = list[float]  # in the order of TERMS

TURNS = 3  # of derivatives and costs
STEP = 0.02  # by which a cost is changed for its derivative, relative
LEAST = 1e-2  # of a cost that is changed so
RANGES = 4  # of sizes, at most
FEWEST = 3  # sizes of a range
PRICE = 0.1  # of a range: what the mean relative errors of all sizes must lose in sum
MOST = 160  # times that are fitted to: each is simulated several times
RESAMPLES = 60
REWEIGHTS, SWEEPS = 6, 40
SMALL = 0.03  # a relative error below this counts by its square, above by itself


@dataclass(frozen=True, eq=False)
class Timing:
    """A measured time, microseconds, of the slowest rank."""

    collective: str
    nbytes: int
    algorithm: str
    params: Mapping[str, Any]
    us: float


@dataclass
class Row:
    """What a timing says of one class: its part of the time is about `goal` of it; derivatives over the time."""

    nbytes: int
    goal: float
    slopes: Costs

    def off(self, costs: Costs) -> float:
        return self.goal - sum(slope * cost for slope, cost in zip(self.slopes, costs, strict=True))


@dataclass
class Fit:
    """Everything that a fit works on."""

    nodes: Sequence[Sequence[int]]
    timings: Sequence[Timing]
    links: dict[str, list[LinkCost]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        foresight = Foresight(self.network)
        self.moving: list[Moving] = [
            foresight.moving(each.collective, each.algorithm, 0, each.params) for each in self.timings
        ]
        inside, outside = TYPICAL.links
        for name in dict.fromkeys(name for each in self.moving for name in each.classes):
            self.links[name] = [replace(outside if name == MPI else inside, class_=name)]

    @property
    def network(self) -> Network:
        return of_links([each for found in self.links.values() for each in found], self.nodes)

    def turn(self) -> None:
        """Fit each class once, the others as they are."""
        rows = {name: self.rows(name) for name in self.links}
        parts = ranges(rows)
        for name, mine in rows.items():
            inside = [([row for row in mine if first <= row.nbytes <= last], last) for first, last in parts]
            filled = [(part, last) for part, last in inside if part]
            ends = [last for _, last in filled[:-1]] + [None]
            self.links[name] = [self.link(name, part, end) for (part, _), end in zip(filled, ends, strict=True)]

    def rows(self, name: str) -> list[Row]:
        network, found = self.network, []
        for timing, moving in zip(self.timings, self.moving, strict=True):
            if name not in moving.classes:
                continue
            before, link = self.us(network, moving, timing), network.link(name, timing.nbytes)
            slopes = []
            for term in TERMS:
                more = max(LEAST, STEP * getattr(link, term))
                changed = self.changed(name, link, replace(link, **{term: getattr(link, term) + more}))
                slopes.append((self.us(changed, moving, timing) - before) / more / timing.us)
            own = sum(slope * getattr(link, term) for slope, term in zip(slopes, TERMS, strict=True))
            found.append(Row(timing.nbytes, 1 - (before / timing.us - own), slopes))
        return found

    def changed(self, name: str, old: LinkCost, new: LinkCost) -> Network:
        mine = [new if each is old else each for each in self.links[name]]
        return of_links([each for found in (self.links | {name: mine}).values() for each in found], self.nodes)

    def us(self, network: Network, moving: Moving, timing: Timing) -> float:
        costs = costs_of(network, moving.traffic.fabric.inside, timing.nbytes)
        return moving.simulate(timing.nbytes, costs).us

    def link(self, name: str, rows: Sequence[Row], last: int | None) -> LinkCost:
        costs, draw = solved(rows), random.Random(len(rows))
        again = [solved(draw.choices(rows, k=len(rows)), 2) for _ in range(RESAMPLES)]
        spread = [quantiles([each[term] for each in again]) for term in range(len(BOUNDS))]
        known: dict[str, Any] = {term: shown(cost) for term, cost in zip(TERMS, costs, strict=True)}
        known |= {bound: (min(low, known[term]), max(high, known[term]))
                  for bound, term, (low, high) in zip(BOUNDS, TERMS, spread, strict=False)}  # fmt: skip
        return replace(self.links[name][0], up_to_bytes=last, **known)

    def with_errors(self) -> list[LinkCost]:
        """The links, with how far the times of those that used them lie from the model's."""
        network, found = self.network, defaultdict[tuple[str, int | None], list[float]](list)
        for timing, moving in zip(self.timings, self.moving, strict=True):
            ratio = self.us(network, moving, timing) / timing.us
            for name in moving.classes:
                found[name, network.link(name, timing.nbytes).up_to_bytes].append(max(ratio, 1 / ratio))
        return [
            replace(link, error=shown(quantiles(found[link.class_, link.up_to_bytes])[1]))
            for links in self.links.values() for link in links
        ]  # fmt: skip


def fit(nodes: Sequence[Sequence[int]], timings: Sequence[Timing]) -> list[LinkCost]:
    """Costs of all classes of links that the timings used, with intervals; `nodes`: the ranks of each.

    ValueError without timings.
    """
    if not timings:
        raise ValueError("no times: nothing was measured that costs could be fitted to")
    fitting = Fit(nodes, thinned(timings))
    for _ in range(TURNS):
        fitting.turn()
    return fitting.with_errors()


def thinned(timings: Sequence[Timing]) -> list[Timing]:
    """Of each algorithm at each size the plain one, the fastest and the slowest; chance decides where that is much."""
    groups: dict[tuple[str, str, int], list[Timing]] = defaultdict(list)
    for each in timings:
        groups[each.collective, each.algorithm, each.nbytes].append(each)
    kept = list[Timing]()
    for same in groups.values():
        by_time = sorted(same, key=lambda each: each.us)
        plain = min(same, key=lambda each: len(each.params))
        kept += dict.fromkeys([plain, by_time[0], by_time[-1]])
    return kept if len(kept) <= MOST else random.Random(0).sample(kept, MOST)


def ranges(rows: Mapping[str, Sequence[Row]]) -> list[tuple[int, int]]:
    """First and last size of each range, the same for all classes: of least error, at a price for each range."""
    sizes = sorted({row.nbytes for mine in rows.values() for row in mine})

    def error(first: int, end: int) -> float:
        return (end - first) * statistics.fmean(
            statistics.fmean(abs(row.off(costs)) for row in part)
            for mine in rows.values()
            if (part := [row for row in mine if sizes[first] <= row.nbytes <= sizes[end - 1]])
            for costs in [solved(part, 2)]
        )

    best: list[tuple[float, list[int]]] = [(0.0, [])]  # of the first i sizes: error, and where ranges end
    for end in range(1, len(sizes) + 1):
        ways = [
            (best[first][0] + error(first, end) + PRICE, [*best[first][1], end])
            for first in range(end)
            if end - first >= min(FEWEST, len(sizes)) and best[first][0] < math.inf and len(best[first][1]) < RANGES
        ]
        best.append(min(ways, default=(math.inf, [])))
    ends = best[-1][1]
    return [(sizes[first], sizes[end - 1]) for first, end in zip([0, *ends], ends, strict=False)]


def solved(rows: Sequence[Row], reweights: int = REWEIGHTS) -> Costs:
    """Costs, none negative, of the least sum of errors. [Iteratively reweighted least squares; coordinate descent]"""
    terms = range(len(TERMS))
    scale = [max((row.slopes[i] for row in rows), default=0.0) for i in terms]
    used = [i for i in terms if scale[i] > 0]
    costs, weights = [0.0] * len(TERMS), [1.0] * len(rows)
    for _ in range(reweights):
        square = [
            [sum(w * row.slopes[i] * row.slopes[j] for w, row in zip(weights, rows, strict=True)) for j in terms]
            for i in terms
        ]
        right = [sum(w * row.slopes[i] * row.goal for w, row in zip(weights, rows, strict=True)) for i in terms]
        for _ in range(SWEEPS):
            for i in used:
                rest = right[i] - sum(square[i][j] * costs[j] for j in used if j != i)
                costs[i] = max(0.0, rest / (square[i][i] * (1 + 1e-9)))
        weights = [1 / max(SMALL, abs(row.off(costs))) for row in rows]
    return costs


def quantiles(values: Iterable[float]) -> tuple[float, float]:
    """Between which the middle 95 % lie; of errors, the second is the one that 97.5 % do not pass."""
    ordered = sorted(values)
    cut = int(0.025 * len(ordered))
    return ordered[cut], ordered[-1 - cut]


def shown(value: float) -> float:
    return float(f"{value:.4g}")
