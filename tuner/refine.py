"""Where neighbouring sizes have different winners, sizes between them are measured, until the border is known.

The border that costs most when it lies wrong is narrowed first: by how much slower each of the two winners is at the
other's size, and how far the sizes are apart.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from tuner.clock import Clock
from tuner.decision import SIGNIFICANT, TIE, Measured
from tuner.space import Candidate

NEAR = 1.1  # sizes nearer than this are not parted any more
UNKNOWN = 0.1  # how much slower the other's winner is where nobody has looked
MOST = 1.0  # how much slower counts

Race = Callable[[Measured, Sequence[Candidate], Clock], None]


def refine(sizes: list[Measured], new: Callable[[int], Measured], race: Race, clock: Clock, itemsize: int) -> None:
    """Inserts sizes that are measured, with their winners, while there is time.

    new(nbytes): a size with its default. race(size, candidates, clock): measures them there. A size is inserted when
    its winner is known, so that whatever ends this leaves whole sizes behind.
    """
    closed = set[tuple[int, int]]()
    while clock.left > 0:
        known = [
            (low, high) for low, high in pairwise(sizes)
            if crosses(low, high) and (low.nbytes, high.nbytes) not in closed and middle(low, high, itemsize)
        ]  # fmt: skip
        if not known:
            return
        low, high = max(known, key=lambda pair: stake(*pair))
        size = new(middle(low, high, itemsize) or 0)
        assert low.winner is not None
        assert high.winner is not None
        race(size, list(dict.fromkeys([size.default, low.winner, high.winner])), Clock(clock.left / (2 * len(known))))
        size.winner, told = between(size, low.winner, high.winner)
        if not told:  # as good as each other there: where exactly the border lies does not matter
            closed |= {(low.nbytes, size.nbytes), (size.nbytes, high.nbytes)}
        sizes.insert(sizes.index(high), size)


def crosses(low: Measured, high: Measured) -> bool:
    """Whether one border, which is measured, lies between two sizes."""
    return low.winner != high.winner and bool(low.race) and bool(high.race)


def middle(low: Measured, high: Measured, itemsize: int) -> int | None:
    """The size of whole elements between two, by ratio; None where they are too near each other."""
    found = math.isqrt(low.nbytes * high.nbytes) // itemsize * itemsize
    return found if low.nbytes < found < high.nbytes and high.nbytes > NEAR * low.nbytes else None


def stake(low: Measured, high: Measured) -> float:
    """What a border in the wrong place may cost."""
    assert low.winner is not None
    assert high.winner is not None
    wrong = slower(low, high.winner, low.winner) + slower(high, low.winner, high.winner)
    return wrong * math.log(high.nbytes / max(1, low.nbytes))


def slower(size: Measured, guest: Candidate, winner: Candidate) -> float:
    """How much longer the guest takes there, as a fraction of the winner's time."""
    if guest in size.race and winner in size.race:
        found = size.over(guest, winner).median - 1
    elif guest in size.ratios and winner in size.ratios:
        found = size.ratios[guest] / size.ratios[winner] - 1
    else:
        found = UNKNOWN
    return min(MOST, max(0.0, found))


def between(size: Measured, low: Candidate, high: Candidate) -> tuple[Candidate, bool]:
    """Which of two neighbours' winners serves a size between them, and whether they could be told apart.

    The faster; where they are as good as each other the default, if it is one of them, or the simpler. The default in
    place of both only where it is faster beyond the noise.
    """
    default = size.default
    racing = [each for each in (low, high) if each in size.race]
    if len(racing) < 2:
        return (racing[0] if racing else default), False
    over, objective = size.over(high, low), size.asked.objective
    slow, fast = (high, low) if over.median > 1 else (low, high)
    common = min(len(size.race[slow]), len(size.race[fast]))
    told = abs(over.median - 1) > TIE and not over.low <= 1 <= over.high
    told &= objective.p_value(size.race[fast][:common], size.race[slow][:common]) < SIGNIFICANT
    winner = fast
    if not told:
        winner = default if default in racing else min(racing, key=lambda each: len(each.items))
    if default in size.race and default not in racing:
        ahead = size.over(winner, default)
        if ahead.low > 1 and ahead.median > 1 + TIE:
            return default, True
    return winner, told
