"""What is known at each size, and what serves there: the default, unless another is faster beyond the noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from collectives.tables.conditions import PRECISIONS
from collectives.tables.table import ORDINARY
from tuner.objective import BY_MEDIAN, Objective
from tuner.space import BASELINE, Candidate
from tuner.statistics import Interval, geometric_mean, holm, median_interval

SIGNIFICANT = 0.01  # chance that a candidate which is not faster than the default replaces it
TIE = 0.02  # nearer than this to the best is as good; a gain of less than this is none
LOOSE_TIE = 0.05  # nearer than this, and within the noise, is as good too


@dataclass(frozen=True)
class Constraints:
    """What a candidate must keep to serve, and by what it is compared.

    in_order: None, where any order will do. width: a figure is known well enough when half its interval, as a part of
    the figure, is less.
    """

    objective: Objective = BY_MEDIAN
    precision: str = PRECISIONS[0]
    allow_native: bool = False
    in_order: Callable[[Candidate], bool] | None = None
    width: float = 0.01

    def allow(self, candidate: Candidate) -> bool:
        if candidate == BASELINE:
            return self.allow_native
        return self.in_order is None or self.in_order(candidate)


FASTEST = Constraints()  # nothing else is asked for


@dataclass
class Measured:
    """What is known at one size. Times are microseconds; those of the race are paired by block."""

    nbytes: int
    default: Candidate
    baseline: bool
    storage: str = ORDINARY
    asked: Constraints = FASTEST
    between: bool = False  # two sizes that were asked for
    ratios: dict[Candidate, float] = field(default_factory=dict)  # to the default, from screening
    race: dict[Candidate, list[float]] = field(default_factory=dict)
    faults: dict[Candidate, str] = field(default_factory=dict)
    winner: Candidate | None = None

    def ranked(self) -> list[Candidate]:
        """Those that may serve, by the first look at them."""
        return sorted(filter(self.asked.allow, self.ratios), key=self.ratios.__getitem__)

    def freest(self) -> Candidate | None:
        """The best of those that may not serve: what the conditions cost is seen beside it."""
        others = [each for each in self.ratios if not self.asked.allow(each)]
        return min(others, key=self.ratios.__getitem__, default=None)

    def leading(self) -> list[Candidate]:
        """Who raced and may serve, the fastest first, without the baseline."""
        if self.default not in self.race:
            return []
        racers = [each for each in self.race if each != BASELINE and self.asked.allow(each)]
        return sorted(racers, key=lambda each: self.beside(each, self.default))

    def interval(self, candidate: Candidate) -> Interval | None:
        return median_interval(self.race[candidate]) if self.race.get(candidate) else None

    def over(self, other: Candidate, candidate: Candidate) -> Interval:
        """How many times the candidate's time the other takes, in the blocks that they share.

        Who dropped out early ran in other minutes of the machine, so figures of all blocks do not compare.
        """
        ours, theirs = self.race[candidate], self.race[other]
        common = min(len(ours), len(theirs))
        return self.asked.objective.ratio(theirs[:common], ours[:common])

    def beside(self, other: Candidate, candidate: Candidate) -> float:
        """The other's median as it would be over all of the candidate's blocks."""
        ours, theirs = self.race[candidate], self.race[other]
        shared = zip(ours, theirs, strict=False)  # blocks; who dropped out has fewer
        return median(their / our for our, their in shared) * median(ours)

    def price(self) -> float | None:
        """How many times as long as the fastest that may not serve the winner takes; 1 unless it is slower for sure."""
        others = [each for each in self.race if each != BASELINE and not self.asked.allow(each)]
        if not others or self.winner not in self.race:
            return None
        assert self.winner is not None
        longer = [self.over(self.winner, each) for each in others]
        return max((each.median for each in longer if each.low > 1), default=1.0)


def price(sizes: Sequence[Measured]) -> float | None:
    """What the conditions cost: the geometric mean over the sizes where that was measured."""
    known = [found for size in sizes if (found := size.price())]
    return geometric_mean(known) if known else None


def decide(sizes: Sequence[Measured]) -> None:
    """Sets each size's winner: of those that may serve, one that serves as many neighbours as can be: few rules."""
    start, common = 0, dict[Candidate, float]()
    for place, size in enumerate([*sizes, None]):
        serving = eligible(size) if size else {}
        both = {each: max(common[each], serving[each]) for each in common if each in serving}
        if both or not place:
            common = both or serving
            continue
        winner = min(common, key=lambda each: (len(each.items), common[each]))
        for served in sizes[start:place]:
            served.winner = winner
        start, common = place, serving


def eligible(size: Measured) -> dict[Candidate, float]:
    """Who may serve a size: its time over that of the best, among the best and those that cannot be told from it.

    The default alone, unless another is faster by TIE at least, and beyond the noise.
    """
    reference, objective = size.race.get(size.default), size.asked.objective
    if not reference:
        return {size.default: 1.0}
    rivals = [
        each for each, us in size.race.items()
        if each != size.default and len(us) == len(reference) and size.asked.allow(each)
    ]  # fmt: skip
    ratios = {each: size.over(each, size.default) for each in rivals}
    corrected = holm([objective.p_value(size.race[each], reference) for each in rivals])
    better = [
        each for each, p in zip(rivals, corrected, strict=True)
        if p < SIGNIFICANT and ratios[each].high < 1 and ratios[each].median < 1 - TIE
    ]  # fmt: skip
    if not better:
        return {size.default: 1.0}
    best = min(better, key=lambda each: ratios[each].median)
    behind = {each: size.over(each, best) for each in better}
    return {
        each: over.median for each, over in behind.items()
        if over.median <= 1 + TIE or (over.median <= 1 + LOOSE_TIE and over.low <= 1)
    }  # fmt: skip
