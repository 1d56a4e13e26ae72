"""What of a candidate's times counts, and how two are compared by it: the median, or the 95th percentile."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from collectives.tables.conditions import MEDIAN, P95
from tuner.statistics import (
    Interval,
    fewer_beyond,
    median_interval,
    quantile,
    quantile_interval,
    quantile_ratio,
    ratio_interval,
    signed_rank,
)

Times = Sequence[float]


@dataclass(frozen=True)
class Objective:
    """Times of two candidates are paired: the k-th ones were measured in the same block.

    figure: what counts of samples. interval: of the figure. ratio: of ours to the reference's. p_value: chance of such
    times if ours were not the smaller. blocks: how many times the blocks that a median needs.
    """

    name: str
    figure: Callable[[Times], float]
    interval: Callable[[Times], Interval]
    ratio: Callable[[Times, Times], Interval]
    p_value: Callable[[Times, Times], float]
    blocks: int = 1


TAIL = 0.95
OBJECTIVES = {
    MEDIAN: Objective(MEDIAN, median, median_interval, ratio_interval, signed_rank),
    P95: Objective(
        P95,
        lambda us: quantile(us, TAIL),
        lambda us: quantile_interval(us, TAIL),
        lambda ours, reference: quantile_ratio(ours, reference, TAIL),
        lambda ours, reference: fewer_beyond(ours, reference, TAIL),
        blocks=4,
    ),
}
BY_MEDIAN = OBJECTIVES[MEDIAN]
