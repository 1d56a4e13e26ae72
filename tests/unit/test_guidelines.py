"""A guideline that does not hold is found beyond the noise alone, and told; so is a machine that drifts."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.clock import Clock
from tuner.commands.show import finding_told
from tuner.decision import Measured
from tuner.drift import Watch
from tuner.guidelines import LIBRARY, LONGER, check_compositions, check_measured, compositions
from tuner.measure import Outcome
from tuner.space import BASELINE, Candidate, candidate

RING = Candidate("ring")
DIRECT = candidate("direct", {"kernel_bytes": 65536})


def times(us, blocks=60, seed=0):
    rng = random.Random(f"{us}{seed}")
    return [us * rng.lognormvariate(0, 0.03) for _ in range(blocks)]


def size(nbytes, us, native=None):
    made = Measured(nbytes, RING, baseline=native is not None, winner=RING)
    made.race = {RING: times(us)} | ({BASELINE: times(native)} if native else {})
    return made


def test_an_allreduce_may_be_made_of_two_others():
    made = compositions("allreduce", lambda _: DIRECT)
    assert [each.algorithm for each in made] == ["reduce + broadcast", "reduce_scatter + allgather"]
    assert made[0].params == {"reduce": "direct:kernel_bytes=65536", "broadcast": "direct:kernel_bytes=65536"}
    assert compositions("broadcast", lambda _: DIRECT) == []


def test_a_composition_that_is_faster_is_found_and_one_that_may_be_is_not():
    def us(each, nbytes):
        faster = {8: 1.0, 64: 0.8, 512: 1.01}[nbytes]
        return 10 * {"ring": 1.0, "reduce + broadcast": 3.0}.get(each.algorithm, faster)

    def measure(at, candidates, blocks):
        found = {each: times(us(each, at.nbytes), blocks, len(at.race.get(RING, ()))) for each in candidates}
        return Outcome(times=found, looks={}, faults={}, block_seconds=0.001, interrupted=False, wrong={})

    def made(nbytes):
        return compositions("allreduce", lambda _: DIRECT)

    sizes = [size(nbytes, 10) for nbytes in (8, 64, 512)]
    found = list(check_compositions(sizes, made, measure, Clock(2.0)))
    assert [each and each.guideline for each in found] == [None, "reduce_scatter + allgather", None]
    (broken,) = filter(None, found)
    assert broken.ratio == pytest.approx(1.25, rel=0.03)
    assert broken.low <= broken.ratio <= broken.high
    assert finding_told(broken).startswith("64 B takes 1.2")
    assert finding_told(broken).endswith("as long as reduce_scatter + allgather")
    assert list(check_compositions(sizes, made, measure, Clock(0))) == []


def test_the_race_itself_shows_what_the_library_does_better_and_what_a_longer_message_does():
    sizes = [size(8, 1.0, 2.0), size(16, 3.0, 2.0), size(32, 2.5, 2.49), size(64, 2.49, 9.0)]
    found = {(each.guideline, each.bytes): each.ratio for each in check_measured(sizes)}
    assert found == {(LIBRARY, 16): pytest.approx(1.5, rel=0.05), (LONGER, 16): pytest.approx(1.2, rel=0.05)}


def test_a_machine_that_drifts_is_told_and_one_that_holds_still_is_not():
    figures = iter([2.0, 2.1, 2.05, 3.0, 2.2])

    def measure(at, candidates, blocks):
        return SimpleNamespace(times={candidates[0]: [next(figures)] * blocks})

    watch = Watch(Measured(4096, RING, baseline=False), measure)
    assert str(watch) == ""
    for _ in range(3):
        watch.look()
    assert str(watch) == ""
    watch.look()
    watch.look()
    assert watch.drift == 1.5
    assert "ring of 4 KiB took 2 us at first, and 2 us to 3 us in 5 looks" in str(watch)
    missing: Any = SimpleNamespace(times={})
    failing = Watch(watch.reference, lambda *_: missing)
    failing.look()
    assert failing.drift is None
