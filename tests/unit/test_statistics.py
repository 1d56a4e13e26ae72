"""The tuner's figures against published values, definitions counted out, and direct resampling."""

import itertools
import math
import random
import statistics

import pytest

from tuner.statistics import (
    fewer_beyond,
    geometric_mean,
    holm,
    median_interval,
    quantile_interval,
    quantile_ratio,
    ratio_interval,
    signed_rank,
)


def direct_bootstrap(samples, resamples=4000, seed=1):
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(samples, k=len(samples))) for _ in range(resamples))
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]


@pytest.mark.parametrize("n", [1, 2, 3, 9, 10, 25, 40])
def test_the_interval_is_that_of_resampling_directly(n):
    rng = random.Random(n)
    samples = [rng.lognormvariate(0, 0.3) for _ in range(n)]
    low, high = direct_bootstrap(samples)
    interval = median_interval(samples)
    assert interval.median == statistics.median(samples)
    spread = statistics.pstdev(samples) + 1e-12
    assert abs(interval.low - low) < 0.15 * spread
    assert abs(interval.high - high) < 0.15 * spread


def test_the_interval_covers_the_true_median_about_19_times_in_20():
    rng = random.Random(3)
    covered = 0
    for run in range(400):
        interval = median_interval([rng.gauss(10, 2) for _ in range(30)], seed=run)
        covered += interval.low <= 10 <= interval.high
    assert 0.90 <= covered / 400 <= 0.99


def test_the_interval_repeats_with_its_seed_and_holds_its_median():
    samples = [1.0, 2.0, 2.0, 3.0, 50.0]
    assert median_interval(samples, seed=5) == median_interval(list(reversed(samples)), seed=5)
    assert median_interval(samples).low <= 2.0 <= median_interval(samples).high
    assert median_interval([4.0]) == median_interval([4.0, 4.0, 4.0])
    assert median_interval([1.0, 3.0]).median == 2.0
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


def test_one_outlier_does_not_move_the_interval():
    samples = [10.0 + k / 100 for k in range(41)]
    assert median_interval([*samples[:-1], 1e9]) == median_interval(samples)


def test_a_paired_ratio_does_not_see_a_drift_that_both_share():
    drift = [1 + k / 10 for k in range(20)]
    ratio = ratio_interval([0.9 * d for d in drift], drift)
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((0.9, 0.9, 0.9))
    with pytest.raises(ValueError, match="do not pair"):
        ratio_interval([1.0], [1.0, 2.0])


def test_signed_rank_counts_all_signs_of_few_pairs():
    """p is the share of the 2^n choices of signs whose positive ranks sum to at most what was seen."""
    rng = random.Random(11)
    for n in range(1, 9):
        reference = [1.0] * n
        ours = [math.exp((k + 1) * rng.choice((-1, 1)) / 100) for k in range(n)]
        rng.shuffle(ours)
        seen = sum(round(abs(math.log(x)) * 100) for x in ours if x > 1)
        sums = [sum(itertools.compress(range(1, n + 1), signs)) for signs in itertools.product((0, 1), repeat=n)]
        assert signed_rank(ours, reference) == pytest.approx(sum(s <= seen for s in sums) / 2**n)


def test_signed_rank_at_published_critical_values():
    """One-sided 5 %: W+ <= 10 for n = 10, W+ <= 60 for n = 20 (p 0.0420 and 0.0487), as in the usual tables."""
    for n, critical, p in ((10, 10, 0.0420), (20, 60, 0.0487)):
        rest, above = critical, set()
        for rank in range(n, 0, -1):
            if rank <= rest:
                above.add(rank)
                rest -= rank
        ours = [math.exp((rank if rank in above else -rank) / 100) for rank in range(1, n + 1)]
        assert signed_rank(ours, [1.0] * n) == pytest.approx(p, abs=5e-5)


def test_signed_rank_of_many_pairs_is_near_the_exact_value():
    rng = random.Random(2)
    ours = [rng.lognormvariate(-0.02, 0.1) for _ in range(60)]
    normal = signed_rank(ours, [1.0] * 60)
    ordered = sorted(ours, key=lambda x: abs(math.log(x)))
    above = sum(rank for rank, x in enumerate(ordered, 1) if x > 1)
    ways = [1]
    for rank in range(1, 61):
        longer = ways + [0] * rank
        for total, count in enumerate(ways):
            longer[total + rank] += count
        ways = longer
    assert normal == pytest.approx(sum(ways[: above + 1]) / 2**60, abs=0.002)


def test_signed_rank_with_ties_and_equal_pairs():
    assert signed_rank([1.0, 2.0], [1.0, 2.0]) == 1.0
    faster = signed_rank([0.5] * 12, [1.0] * 12)
    assert faster < 0.001
    assert signed_rank([1.0] * 12, [0.5] * 12) > 0.999
    assert signed_rank([*[0.5] * 12, 7.0], [*[1.0] * 12, 7.0]) == faster


def test_a_quantile_has_the_interval_of_resampling_directly():
    rng = random.Random(5)
    samples = [rng.uniform(1, 2) for _ in range(120)]
    direct = sorted(sorted(rng.choices(samples, k=120))[113] for _ in range(2000))  # 114 of 120 are at or below it
    found = quantile_interval(samples, 0.95)
    assert found.median == sorted(samples)[113]
    assert (found.low, found.high) == pytest.approx((direct[50], direct[-51]), rel=0.1)
    ratio = quantile_ratio([2 * us for us in samples], samples, 0.95)
    assert ratio.median == pytest.approx(2)
    assert ratio.low < 2 < ratio.high
    for call in (lambda: quantile_interval([], 0.95), lambda: quantile_ratio([], [1.0], 0.95)):
        with pytest.raises(ValueError, match="no samples"):
            call()


def test_who_lies_less_often_beyond_a_limit_is_counted_exactly():
    """20 pairs of which 5 of the reference's alone lie beyond the quantile: (1/2)^5; one of ours: (1 + 6) / 2^6."""
    ours, reference = [1.0] * 20, [1.0] * 15 + [9.0] * 5
    assert fewer_beyond(ours, reference, 0.875) == 1 / 32  # 35 of 40 samples are at or below the limit
    assert fewer_beyond([9.0] + [1.0] * 19, [*[1.0] * 15, *[9.0] * 5], 0.85) == 7 / 64
    assert fewer_beyond(ours, ours, 0.95) == 1.0
    assert fewer_beyond(reference, ours, 0.875) == 1.0
    with pytest.raises(ValueError, match="do not pair"):
        fewer_beyond([1.0], [], 0.95)


def test_holm_gives_the_worked_example():
    """Holm 1979: 0.01, 0.04, 0.03, 0.005 become 0.03, 0.06, 0.06, 0.02."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_geometric_mean_of_ratios():
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean(x for x in (1.0, 10.0, 100.0)) == pytest.approx(10.0)
    with pytest.raises(ValueError, match="mean"):
        geometric_mean([])
