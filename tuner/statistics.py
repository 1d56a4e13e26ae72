"""Robust figures from few, noisy times: median, its interval, paired ratio, rank test. Standard library only."""

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

RESAMPLES = 2000
EXACT_UP_TO = 25  # pairs; beyond, the signed-rank sum is near enough to normal


@dataclass(frozen=True)
class Interval:
    """A median and its 95 % interval, in the unit of the samples."""

    median: float
    low: float
    high: float

    @property
    def relative_width(self) -> float:
        """Half of the interval as a fraction of the median."""
        return (self.high - self.low) / (2 * self.median) if self.median else math.inf


def median_interval(samples: Sequence[float], *, level: float = 0.95, seed: int = 0) -> Interval:
    """Median and percentile bootstrap interval. ValueError without samples.

    A resample's k-th order statistic is the sample at a Beta-distributed place, so that one resample costs two draws
    instead of a sort, and is distributed exactly alike. [Efron 1979; order statistics of uniforms: David and Nagaraja
    2003, section 2.3]
    """
    if not samples:
        raise ValueError("no samples: nothing was measured")
    ordered, rng = sorted(samples), random.Random(seed)
    n, half = len(ordered), (len(ordered) + 1) // 2
    medians = sorted(_resampled_median(ordered, n, half, rng) for _ in range(RESAMPLES))
    return _interval(statistics.median(ordered), medians, level)


def _resampled_median(ordered: Sequence[float], n: int, half: int, rng: random.Random) -> float:
    place = rng.betavariate(half, n + 1 - half)  # of the half-th of n uniforms
    lower = ordered[min(int(n * place), n - 1)]
    if n % 2:
        return lower
    place += (1 - place) * (1 - rng.random() ** (1 / (n - half)))  # the next one: the least of those above
    return (lower + ordered[min(int(n * place), n - 1)]) / 2


def quantile(samples: Sequence[float], q: float) -> float:
    """The smallest sample with a share of q at or below it. ValueError without samples."""
    if not samples:
        raise ValueError("no samples: nothing was measured")
    return sorted(samples)[_place(len(samples), q) - 1]


def quantile_interval(samples: Sequence[float], q: float, *, level: float = 0.95, seed: int = 0) -> Interval:
    """The q-quantile and its interval, as for medians."""
    if not samples:
        raise ValueError("no samples: nothing was measured")
    ordered, rng = sorted(samples), random.Random(seed)
    found = sorted(_resampled(ordered, q, rng) for _ in range(RESAMPLES))
    return _interval(quantile(ordered, q), found, level)


def quantile_ratio(
    ours: Sequence[float], reference: Sequence[float], q: float, *, level: float = 0.95, seed: int = 0
) -> Interval:
    """The ratio of two quantiles, each resampled for itself: a drift that both share makes its interval only wider."""
    if not ours or not reference:
        raise ValueError("no samples: nothing was measured")
    mine, theirs, rng = sorted(ours), sorted(reference), random.Random(seed)
    found = sorted(_resampled(mine, q, rng) / _resampled(theirs, q, rng) for _ in range(RESAMPLES))
    return _interval(quantile(mine, q) / quantile(theirs, q), found, level)


def _place(n: int, q: float) -> int:
    return max(1, math.ceil(n * q))


def _resampled(ordered: Sequence[float], q: float, rng: random.Random) -> float:
    """The q-quantile of a resample, which is the sample at a Beta-distributed place."""
    n, k = len(ordered), _place(len(ordered), q)
    return ordered[min(int(n * rng.betavariate(k, n + 1 - k)), n - 1)]


def _interval(middle: float, found: Sequence[float], level: float) -> Interval:
    cut = int((1 - level) / 2 * len(found))
    return Interval(middle, min(found[cut], middle), max(found[-1 - cut], middle))


def ratio_interval(ours: Sequence[float], reference: Sequence[float], *, seed: int = 0) -> Interval:
    """Median of the paired ratios ours/reference, with its interval; pairs were measured in the same block."""
    if len(ours) != len(reference):
        raise ValueError(f"{len(ours)} samples do not pair with {len(reference)}")
    return median_interval([a / b for a, b in zip(ours, reference, strict=True)], seed=seed)


def signed_rank(ours: Sequence[float], reference: Sequence[float]) -> float:
    """p-value that ours is not smaller than the reference, from pairs. [Wilcoxon 1945]

    One-sided: small where ours is smaller. The pairs' logarithms of ratios are ranked; pairs that are equal say
    nothing and are left out. Exact for up to 25 pairs without ties, else normal with corrections for ties and
    continuity. 1.0 where no pair differs.
    """
    if len(ours) != len(reference):
        raise ValueError(f"{len(ours)} samples do not pair with {len(reference)}")
    ratios = [math.log(a / b) for a, b in zip(ours, reference, strict=True) if a != b]
    n = len(ratios)
    if not n:
        return 1.0
    ranks, ties = _ranks([abs(ratio) for ratio in ratios])
    above = sum(rank for rank, ratio in zip(ranks, ratios, strict=True) if ratio > 0)
    if n <= EXACT_UP_TO and not ties:
        ways = _signed_rank_ways(n)
        return float(sum(ways[: int(above) + 1]) / 2**n)
    mean, variance = n * (n + 1) / 4, n * (n + 1) * (2 * n + 1) / 24 - ties / 48
    return statistics.NormalDist().cdf((above - mean + 0.5) / math.sqrt(variance))


def fewer_beyond(ours: Sequence[float], reference: Sequence[float], q: float) -> float:
    """p-value that ours are not less often beyond the q-quantile of both, from pairs. [McNemar 1947; Mood 1950]

    One-sided and exact: of the pairs of which one alone lies beyond, how many are ours. 1.0 where there are none.
    """
    if len(ours) != len(reference):
        raise ValueError(f"{len(ours)} samples do not pair with {len(reference)}")
    both = sorted([*ours, *reference])
    limit = both[_place(len(both), q) - 1] if both else 0.0
    alone = [a > b for a, b in zip(ours, reference, strict=True) if (a > limit) != (b > limit)]
    n, mine = len(alone), sum(alone)
    return float(sum(math.comb(n, k) for k in range(mine + 1)) / 2**n)


def _ranks(values: Sequence[float]) -> tuple[list[float], int]:
    """1 for the smallest; equal values share the mean of their ranks. Also the sum of t^3 - t over t equal values."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks, ties, start = [0.0] * len(values), 0, 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            ranks[place] = (start + 1 + end) / 2
        ties += (end - start) ** 3 - (end - start)
        start = end
    return ranks, ties


def _signed_rank_ways(n: int) -> list[int]:
    """In how many of the 2^n choices of signs the positive ranks sum to 0, 1, 2, ..."""
    ways = [1] + [0] * (n * (n + 1) // 2)
    for rank in range(1, n + 1):
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    return ways


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for being many, in their order. [Holm 1979]"""
    corrected, largest, left = [0.0] * len(p_values), 0.0, len(p_values)
    for place in sorted(range(len(p_values)), key=p_values.__getitem__):
        largest = max(largest, min(1.0, left * p_values[place]))
        corrected[place] = largest
        left -= 1
    return corrected


def geometric_mean(values: Iterable[float]) -> float:
    """Of ratios; ValueError without values or where one is not positive."""
    return statistics.geometric_mean(list(values))
