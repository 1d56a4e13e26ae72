"""Winners are timed once more, later and beside the default: who does not hold gives way to it.

A race ends in the minutes in which its winner looked best, and between two sizes it is short. Times from another minute
have no such bias.
"""

from collections.abc import Callable, Mapping, Sequence

from tuner import units
from tuner.clock import Clock
from tuner.decision import Measured
from tuner.measure import Outcome
from tuner.space import BASELINE, Candidate

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
        fresh = timed(size, measure, clock.part(1 / (len(claims) - place)))
        if not holds(size, fresh):
            size.winner = size.default
            if size.default in fresh:  # what a table says of this size are the times that decided
                size.race = fresh
            given_way.append(size)
    return given_way


def told(given_way: Sequence[Measured]) -> str:
    """What is to be said of them; empty where all held."""
    if not given_way:
        return ""
    where = ", ".join(units.size(size.nbytes) for size in sorted(given_way, key=lambda size: size.nbytes))
    return f"timed once more, the winner was not faster at {where}: the default serves there"


def timed(size: Measured, measure: Measure, share: Clock) -> dict[Candidate, list[float]]:
    """Times of now, in the same blocks, of the winner, the default, and the MPI library's own where it has raced."""
    assert size.winner is not None
    rivals = list(dict.fromkeys([size.winner, size.default, *([BASELINE] if BASELINE in size.race else [])]))
    least, most = (blocks * size.asked.objective.blocks for blocks in BLOCKS)
    first = measure(size, rivals, least)
    more = min(most - least, int(share.left / max(first.block_seconds, 1e-6)))
    rest = measure(size, rivals, more).times if more > 0 and len(first.times) == len(rivals) else {}
    return {each: us + rest.get(each, []) for each, us in first.times.items()}


def holds(size: Measured, times: Mapping[Candidate, Sequence[float]]) -> bool:
    """Whether the winner is faster than the default, by what counts."""
    ours, defaults = (times.get(each, ()) if each else () for each in (size.winner, size.default))
    return bool(ours and defaults) and size.asked.objective.ratio(ours, defaults).median < 1
