"""Winners are timed once more, later and beside the default: who does not hold gives way to it.

A race ends in the minutes in which its winner looked best, and between two sizes it is short. Times from another minute
have no such bias.
"""

from collections.abc import Callable, Sequence

from tuner import units
from tuner.clock import Clock
from tuner.decision import Measured
from tuner.measure import Outcome
from tuner.space import Candidate

BLOCKS = (12, 60)  # of one winner, times what the objective needs

Measure = Callable[[Measured, Sequence[Candidate], int], Outcome]  # at a size, so many blocks of these


def confirm(sizes: Sequence[Measured], measure: Measure, clock: Clock) -> list[Measured]:
    """Sizes whose winner was not faster this time: the default serves there now.

    Those between two sizes come first, which raced for the shortest time, and all of these are looked at; the others
    while there is time.
    """
    given_way = []
    claims = [size for size in sizes if size.race and size.winner not in (None, size.default)]
    claims.sort(key=lambda size: not size.between)
    for place, size in enumerate(claims):
        if clock.left <= 0 and not size.between:
            break
        if not holds(size, measure, clock.part(1 / (len(claims) - place))):
            size.winner = size.default
            given_way.append(size)
    return given_way


def told(given_way: Sequence[Measured]) -> str:
    """What is to be said of them; empty where all held."""
    if not given_way:
        return ""
    where = ", ".join(units.size(size.nbytes) for size in sorted(given_way, key=lambda size: size.nbytes))
    return f"timed once more, the winner was not faster at {where}: the default serves there"


def holds(size: Measured, measure: Measure, share: Clock) -> bool:
    """Whether the winner is faster than the default by its median ratio, in blocks of now."""
    assert size.winner is not None
    rivals, objective = [size.winner, size.default], size.asked.objective
    least, most = (blocks * objective.blocks for blocks in BLOCKS)
    times: dict[Candidate, list[float]] = {each: [] for each in rivals}
    blocks = least
    for more in (most - least, 0):
        if blocks > 0:
            outcome = measure(size, rivals, blocks)
            if not all(outcome.times.get(each) for each in rivals):
                return False
            for each in rivals:
                times[each] += outcome.times[each]
            blocks = min(more, int(share.left / max(outcome.block_seconds, 1e-6)))
    return objective.ratio(times[size.winner], times[size.default]).median < 1
