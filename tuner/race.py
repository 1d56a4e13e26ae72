"""The race at one size: candidates run interleaved until the best is known; who is worse beyond the noise drops out."""

from collections.abc import Callable, Sequence

from tuner.clock import Clock
from tuner.decision import SIGNIFICANT, Measured
from tuner.measure import Outcome
from tuner.space import BASELINE, Candidate

RACE_BLOCKS = (6, 40)  # of one round, times what the objective needs
MOST_BLOCKS = 400  # of a whole race, likewise
ENOUGH_BLOCKS = 40  # of a race in which nobody rivals the default any more, likewise
RACERS = 5  # beside the default, the baseline and the best that may not serve
NEAR = 1.3  # times the best screened: may still win a race

Measure = Callable[[Measured, Sequence[Candidate], int], Outcome]  # at a size, so many blocks of these


def racers(size: Measured, guests: Sequence[Candidate]) -> list[Candidate]:
    """Who starts: who cannot drop out, the best of the first look, and guests: those that led at the size below."""
    ranked = size.ranked()
    close = [each for each in ranked if size.ratios[each] <= NEAR * size.ratios[ranked[0]]][:RACERS]
    return list(dict.fromkeys([*kept(size), *close, *guests]))


def kept(size: Measured) -> list[Candidate]:
    """Who stays to the end: all others are compared with them."""
    return [size.default, *([BASELINE] if size.baseline else []), *filter(None, [size.freest()])]


def race(size: Measured, racing: Sequence[Candidate], share: Clock, measure: Measure) -> list[Candidate]:
    """Measures while there is time and something to tell apart, once at least. Who is left."""
    running, few = list(racing), size.asked.objective.blocks
    least, most = (blocks * few for blocks in RACE_BLOCKS)
    blocks = least
    while running and done(size) < MOST_BLOCKS * few:
        outcome = measure(size, running, blocks)
        size.faults |= outcome.faults
        for candidate, us in outcome.times.items():
            size.race.setdefault(candidate, []).extend(us)
        staying = kept(size)
        running = [each for each in running if each in outcome.times and (each in staying or not lost(size, each))]
        if share.left <= 0 or settled(size, running):
            break
        blocks = max(least, min(int(share.left / 2 / max(outcome.block_seconds, 1e-6)), most))
    return running


def done(size: Measured) -> int:
    return max(map(len, size.race.values()), default=0)


def lost(size: Measured, candidate: Candidate) -> bool:
    """Worse than the best beyond the noise."""
    length, objective = len(size.race[candidate]), size.asked.objective
    ours = [each for each in size.race if each != BASELINE and size.asked.allow(each)]
    current = {each: size.race[each] for each in ours if len(size.race[each]) == length}
    best = min(current, key=lambda each: objective.figure(current[each]))
    if best == candidate or objective.p_value(current[best], current[candidate]) >= SIGNIFICANT / RACERS:
        return False
    return objective.ratio(current[candidate], current[best]).low > 1


def settled(size: Measured, running: Sequence[Candidate]) -> bool:
    """Nothing is left to tell apart, and what is left is known well."""
    staying, objective = kept(size), size.asked.objective
    rivals = [each for each in running if each not in staying]
    if not rivals:
        return done(size) >= ENOUGH_BLOCKS * objective.blocks
    known = all(objective.interval(size.race[each]).relative_width < size.asked.width for each in running)
    return known and len(rivals) == 1


def stake(size: Measured, running: Sequence[Candidate]) -> float:
    """What more measuring may bring: by which part of its time somebody may be faster than the one who leads."""
    able = [each for each in running if each in size.race and each != BASELINE and size.asked.allow(each)]
    if len(able) < 2 or settled(size, running):
        return 0.0
    leader = min(able, key=lambda each: size.asked.objective.figure(size.race[each]))
    return max(max(0.0, 1 - size.over(each, leader).low) for each in able if each != leader)
