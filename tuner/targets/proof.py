"""The proof of an exported file: the real library with it and without it, in one interleaved run.

That an algorithm took effect is seen in the result's bits: numbers are summed that no two orders of adding round alike,
so with the file they must be those of the algorithm forced by its own knob. Where these are the default's bits too, as
on two ranks, a reduction by an operation that tells its operands apart may still show it. Where neither does, or where
nothing is reduced, it cannot be seen, and the proof says so. Where the file leaves the decision to the library, all of
these must be as they are without it.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collectives.tables.table import Rule
from tuner.space import Candidate, candidate
from tuner.statistics import Interval, ratio_interval
from tuner.targets.relaunch import Fault, Request, Rounds
from tuner.targets.target import DEFAULT

WITH_FILE = Candidate("with the file")
SEEN, UNSEEN, OTHER = "seen", "cannot be seen", "NOT taken"


@dataclass(frozen=True)
class Line:
    """One size: what the file names, whether the library did it, and the time with the file over that without."""

    collective: str
    bytes: int
    chosen: Candidate
    effect: str
    ratio: Interval


def prove(
    request: Request, chosen: dict[int, Candidate], environment: dict[str, str], rounds: int,
    told: Callable[[float, str], None],
) -> list[Line]:  # fmt: skip
    """`chosen`: what the file names at each size. Raises Fault where the library does not run with the file."""
    forced = {each: request.target.forced(request.collective, each) for each in chosen.values()}
    both = Rounds(request, {DEFAULT: {}, WITH_FILE: environment}, random.Random(0))
    knobs = Rounds(request, {DEFAULT: {}} | forced, random.Random(0))
    knobs.round(lambda text: told(0.0, text))
    for done in range(rounds):
        both.round(lambda text, done=done: told(done / rounds, text))  # type: ignore[misc]
    if WITH_FILE in both.faults:
        raise Fault(both.faults[WITH_FILE])
    return [
        Line(request.collective, size, each, effect(both, knobs, each, size), ratio(both, size))
        for size, each in chosen.items()
    ]


def effect(both: Rounds, knobs: Rounds, each: Candidate, size: int) -> str:
    sums = [both.bits(WITH_FILE, size), both.bits(DEFAULT, size), knobs.bits(each, size)]
    orders = [both.order(WITH_FILE, size), both.order(DEFAULT, size), knobs.order(each, size)]
    if each == DEFAULT:
        return SEEN if all(kind[0] and kind[0] == kind[1] for kind in (sums, orders)) else UNSEEN
    with_file, alone, forced = sums
    if with_file and forced and forced != alone:
        return SEEN if with_file == forced else OTHER
    # A library may serve an operation that it does not know otherwise, so this only ever shows that it did take effect.
    with_file, alone, forced = orders
    return SEEN if with_file and with_file == forced != alone else UNSEEN


def ratio(both: Rounds, size: int) -> Interval:
    return ratio_interval(both.us(WITH_FILE, size), both.us(DEFAULT, size))


def chosen_of(rules: Sequence[Rule], sizes: Sequence[int]) -> dict[int, Candidate]:
    """What the rules name at each size."""
    found = {}
    for size in sizes:
        rule = next(each for each in rules if each.max_bytes is None or size <= each.max_bytes)
        found[size] = candidate(rule.algorithm, rule.params) if rule.algorithm != DEFAULT.algorithm else DEFAULT
    return found
