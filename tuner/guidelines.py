"""Guidelines that a well tuned collective keeps, checked at the end of a tuning run.

An allreduce is not slower than a reduce and a broadcast, nor than a reduce-scatter and an allgather, since it may be
made of them; a longer message does not take less time, since a shorter one may be padded; and nothing is slower than
what the MPI library has of its own. [Traeff, Gropp, Thakur 2010: self-consistent MPI performance requirements]
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from collectives.tables.conditions import Finding
from tuner.clock import Clock
from tuner.composed import COMPOSED
from tuner.decision import LOOSE_TIE, SIGNIFICANT, TIE, Constraints, Measured
from tuner.measure import Outcome
from tuner.race import race
from tuner.rules import rounded
from tuner.space import BASELINE, Candidate
from tuner.statistics import Interval

LIBRARY, LONGER = "the MPI library's own", "a longer message"


def compositions(collective: str, part: Callable[[str], Candidate]) -> list[Candidate]:
    """What the collective may be made of; part: what serves a collective."""
    made = COMPOSED if collective == "allreduce" else {}
    return [Candidate(name, tuple(sorted((each, str(part(each))) for each in parts))) for name, parts in made.items()]


def check_compositions(
    sizes: Sequence[Measured],
    made: Callable[[int], list[Candidate]],
    measure: Callable[[Measured, Sequence[Candidate], int], Outcome],
    clock: Clock,
) -> Iterator[Finding | None]:
    """For each size that there was time for, what is broken, or None where all is well."""
    for place, size in enumerate(sizes):
        others = made(size.nbytes)
        if clock.left <= 0 or not others or size.winner is None:
            return
        # Whoever composes it is a rival here, and the winner is what all are compared with.
        asked = Constraints(size.asked.objective, size.asked.precision)
        beside = Measured(size.nbytes, size.winner, baseline=False, asked=asked)
        race(beside, [size.winner, *others], clock.part(1 / (len(sizes) - place)), measure)
        found = [finding for each in others if (finding := slower(beside, each, each.algorithm))]
        yield max(found, key=lambda finding: finding.ratio, default=None)


def check_measured(sizes: Sequence[Measured]) -> Iterator[Finding]:
    """What the race itself shows: against the MPI library's own, and from size to size."""
    raced = [(size, us) for size in sizes if size.winner and (us := size.interval(size.winner))]
    for size, _ in raced:
        if size.winner != BASELINE and (found := slower(size, BASELINE, LIBRARY)):
            yield found
    for (shorter, ours), (_, theirs) in pairwise(raced):
        if ours.low > theirs.high and ours.median > (1 + LOOSE_TIE) * theirs.median:
            ratio = Interval(ours.median / theirs.median, ours.low / theirs.high, ours.high / theirs.low)
            yield finding_of(LONGER, shorter.nbytes, ratio)


def slower(size: Measured, other: Candidate, guideline: str) -> Finding | None:
    """Whether the size's winner is slower than another, beyond the noise and by what counts."""
    winner = size.winner if size.winner in size.race else size.default
    if winner not in size.race or other not in size.race:
        return None
    assert winner is not None
    over, common = size.over(winner, other), min(len(size.race[winner]), len(size.race[other]))
    chance = size.asked.objective.p_value(size.race[other][:common], size.race[winner][:common])
    if over.low > 1 and over.median > 1 + TIE and chance < SIGNIFICANT:
        return finding_of(guideline, size.nbytes, over)
    return None


def finding_of(guideline: str, nbytes: int, over: Interval) -> Finding:
    return Finding(
        guideline=guideline, bytes=nbytes, ratio=rounded(over.median), low=rounded(over.low), high=rounded(over.high)
    )
