"""Borders between winners are found where they are, the dearest first; the budget goes where it may bring most."""

import random

import pytest

from tuner.clock import Clock
from tuner.decision import Measured
from tuner.race import stake
from tuner.refine import between, refine
from tuner.rules import rules_of
from tuner.space import Candidate, candidate

DEFAULT = Candidate("recursive_doubling")
RING = candidate("ring", {"segment_bytes": 65536, "slots": 3})
TWO_SHOT = Candidate("two_shot")


def times(us, noise=0.01, blocks=40, seed=0):
    rng = random.Random(f"{us}{seed}")
    return [us * rng.lognormvariate(0, noise) for _ in range(blocks)]


class Lab:
    """Sizes that are measured by a function of (candidate, bytes)."""

    def __init__(self, us, default=DEFAULT):
        self.us, self.default, self.raced = us, default, []

    def size(self, nbytes, winner=None, racing=(DEFAULT, RING, TWO_SHOT)):
        made = Measured(nbytes, self.default, baseline=False, winner=winner)
        made.race = {each: times(self.us(each, nbytes)) for each in racing if winner}
        return made

    def race(self, size, racing, _):
        self.raced.append(size.nbytes)
        size.race = {each: times(self.us(each, size.nbytes)) for each in racing}


def latency_then_bandwidth(each, nbytes):
    """Equal at 42,000 bytes; two_shot is never the best."""
    return {DEFAULT: 2 + nbytes / 1000, RING: 30 + nbytes / 3000}.get(each, 40 + nbytes / 900)


def test_a_border_is_narrowed_until_it_lies_where_the_winners_are_equal():
    lab = Lab(latency_then_bandwidth)
    sizes = [lab.size(8, DEFAULT), lab.size(1 << 14, DEFAULT), lab.size(1 << 17, RING), lab.size(1 << 20, RING)]
    refine(sizes, lab.size, lab.race, Clock(60), 4)
    assert len(lab.raced) in (3, 4, 5)
    assert [size.nbytes for size in sizes] == sorted(size.nbytes for size in sizes)
    assert all(size.nbytes % 4 == 0 for size in sizes)
    below, above = rules_of("allreduce", "float32", "sum", sizes)
    assert (below.algorithm, above.algorithm) == ("recursive_doubling", "ring")
    assert below.max_bytes == pytest.approx(42_000, rel=0.06)
    assert above.measured_bytes == 1 << 20


def test_the_border_that_may_cost_most_comes_first_and_time_ends_it():
    def us(each, nbytes):
        cheap = {DEFAULT: 100, RING: 103 if nbytes < 100 else 97, TWO_SHOT: 900}
        dear = {DEFAULT: 900, RING: 100 if nbytes < 40_000 else 300, TWO_SHOT: 300 if nbytes < 40_000 else 100}
        return (cheap if nbytes < 5000 else dear)[each]

    lab = Lab(us)
    given = [lab.size(64, DEFAULT), lab.size(1024, RING), lab.size(16384, RING), lab.size(65536, TWO_SHOT)]
    sizes = list(given)
    refine(sizes, lab.size, lab.race, Clock(0), 4)
    assert sizes == given
    refine(sizes, lab.size, lab.race, Clock(60), 4)
    assert lab.raced[0] == 32768
    assert 256 in lab.raced


def test_what_cannot_be_told_apart_is_not_parted_further_and_leaves_the_default():
    lab = Lab(lambda *_: 10.0)
    sizes = [lab.size(64, DEFAULT), lab.size(4096, RING)]
    refine(sizes, lab.size, lab.race, Clock(60), 4)
    assert [(size.nbytes, size.winner) for size in sizes] == [(64, DEFAULT), (512, DEFAULT), (4096, RING)]


def test_between_two_winners_the_default_serves_only_where_it_is_faster_than_both():
    size = Lab(None).size(512)
    size.race = {DEFAULT: times(10), RING: times(10.05, seed=1), TWO_SHOT: times(12)}
    assert between(size, RING, TWO_SHOT) == (RING, True)
    size.race[DEFAULT] = times(9)
    assert between(size, RING, TWO_SHOT) == (DEFAULT, True)
    size.race = {DEFAULT: times(10), RING: times(10, seed=1), TWO_SHOT: times(10, seed=2)}
    assert between(size, RING, TWO_SHOT) == (TWO_SHOT, False)  # the simpler
    del size.race[TWO_SHOT]
    assert between(size, RING, TWO_SHOT) == (RING, False)


def test_an_interrupt_leaves_whole_sizes():
    lab = Lab(latency_then_bandwidth)
    sizes = [lab.size(1 << 10, DEFAULT), lab.size(1 << 20, RING)]

    def race(size, racing, share):
        if lab.raced:
            raise KeyboardInterrupt
        lab.race(size, racing, share)

    with pytest.raises(KeyboardInterrupt):
        refine(sizes, lab.size, race, Clock(60), 4)
    assert [size.winner for size in sizes] == [DEFAULT, DEFAULT, RING]


def test_there_is_nothing_at_stake_where_one_is_known_to_be_the_best():
    lab = Lab(lambda each, _: {DEFAULT: 10, RING: 9.99}.get(each, 20))
    size = lab.size(8, DEFAULT)
    racing = list(size.race)
    close = stake(size, racing)
    assert 0 < close < 0.02
    size.race[RING] = times(9.99, noise=0.5)
    assert stake(size, racing) > 2 * close
    assert stake(size, [DEFAULT]) == 0
