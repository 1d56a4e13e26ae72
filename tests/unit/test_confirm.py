"""A winner that is not faster when it is timed once more gives way to the default."""

import random

import pytest

from tuner.clock import Clock
from tuner.confirm import BLOCKS, confirm, told
from tuner.decision import Measured
from tuner.measure import Outcome
from tuner.space import Candidate

DEFAULT, WINNER = Candidate("recursive_doubling"), Candidate("ring")


def size(nbytes, between=False, winner=WINNER, raced=True):
    made = Measured(nbytes, DEFAULT, baseline=False, between=between, winner=winner)
    made.race = {DEFAULT: [10.0], WINNER: [8.0]} if raced else {}
    return made


class Machine:
    """Times candidates by the ratio of the winner's to the default's at a size, in the seconds given for a block."""

    def __init__(self, ratio, seconds=0.0, faults=()):
        self.ratio, self.seconds, self.faults, self.asked = ratio, seconds, faults, []

    def __call__(self, size, candidates, blocks):
        assert list(candidates) == [WINNER, DEFAULT]
        self.asked.append((size.nbytes, blocks))
        rng = random.Random(size.nbytes)
        found = {}
        for each, ratio in ((DEFAULT, 1.0), (WINNER, self.ratio(size.nbytes))):
            if each not in self.faults:
                found[each] = [10 * ratio * rng.lognormvariate(0, 0.05) for _ in range(blocks)]
        return Outcome(found, {}, {}, self.seconds, False, {})


def test_who_was_lucky_gives_way_and_who_is_faster_stays():
    sizes = [size(8), size(64), size(512, winner=DEFAULT), size(4096, raced=False)]
    machine = Machine({8: 0.9, 64: 1.36}.__getitem__)
    given_way = confirm(sizes, machine, Clock(60))
    assert given_way == [sizes[1]]
    assert [each.winner for each in sizes] == [WINNER, DEFAULT, DEFAULT, WINNER]
    assert told(given_way) == "timed once more, the winner was not faster at 64 B: the default serves there"
    assert told([]) == ""
    assert {nbytes for nbytes, _ in machine.asked} == {8, 64}
    assert sum(blocks for nbytes, blocks in machine.asked if nbytes == 8) == BLOCKS[1]
    assert len(sizes[0].race[WINNER]) == 1
    assert [len(us) for us in sizes[1].race.values()] == 2 * [BLOCKS[1]]  # the times that decided are what a table says


def test_sizes_between_two_are_looked_at_first_and_whatever_the_time():
    sizes = [size(8), size(28, between=True), size(64)]
    machine = Machine(lambda _: 1.36)
    assert confirm(sizes, machine, Clock(0)) == [sizes[1]]
    assert machine.asked == [(28, BLOCKS[0])]
    assert [each.winner for each in sizes] == [WINNER, DEFAULT, WINNER]


def test_a_share_of_the_time_bounds_the_blocks_of_a_slow_call():
    machine = Machine(lambda _: 0.9, seconds=1.0)
    assert confirm([size(8), size(64)], machine, Clock(30)) == []
    assert [nbytes for nbytes, _ in machine.asked] == [8, 8, 64, 64]
    assert machine.asked[1][1] in (14, 15)


@pytest.mark.parametrize("missing", [DEFAULT, WINNER])
def test_who_fails_now_does_not_serve(missing):
    sizes = [size(8)]
    assert confirm(sizes, Machine(lambda _: 0.5, faults=[missing]), Clock(60)) == sizes
