"""Whether a table still holds: a sample of its rules measured anew, each beside its runner-up and the default.

They take turns in random order, as in `treering tune`, and times of one turn are compared with each other. A rule has
become slower where another is faster by a rank test, corrected for all comparisons of the check, and by more than the
tuner lets pass when it chooses.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from time import monotonic
from typing import Any

from collectives.contract import REDUCING
from collectives.dtypes import ITEMSIZE
from collectives.selection import choose
from collectives.tables.table import DTYPE_CLASSES, GPU, OP_CLASSES, Rule, Table
from tuner.decision import LOOSE_TIE, SIGNIFICANT, TIE
from tuner.measure import Job, Session, Stopped
from tuner.search import within
from tuner.space import Candidate, candidate
from tuner.statistics import Interval, holm, median_interval, ratio_interval, signed_rank

RULES = 16  # that are measured anew, at most
ROUNDS = 2  # over all of them, so that a machine that drifts does so for all
BLOCKS = (10, 200)  # of a round of one rule
DEFAULT, RUNNER_UP = "default", "runner-up"
SLACK = {DEFAULT: TIE, RUNNER_UP: LOOSE_TIE}  # by so much a rule may be slower: its neighbours share it
REPRESENTATIVE = {"half": "bfloat16", "float": "float32", "integer": "int32", "arithmetic": "sum", "bitwise": "xor"}


@dataclass(frozen=True)
class Again:
    """A rule to be measured at one size, and what beside it."""

    rule: Rule
    dtype: str
    op: str
    nbytes: int
    ours: Candidate
    others: Mapping[str, Candidate]  # those that are not the same

    def job(self, blocks: int, seed: int) -> Job:
        unique = dict.fromkeys([self.ours, *self.others.values()])
        return Job(
            collective=self.rule.collective, dtype=self.dtype, op=self.op, nbytes=self.nbytes, blocks=blocks, seed=seed,
            storage=self.rule.storage, candidates=[(each.algorithm, each.params) for each in unique], stage="check",
        )  # fmt: skip


@dataclass
class Finding:
    """What came of one rule. Times are microseconds of the slowest rank; `over`: ours over the other's, paired.

    slower_than: the others that are faster now beyond the noise. fault: why the rule cannot serve here, or "".
    """

    again: Again
    times: dict[Candidate, list[float]] = field(default_factory=dict)
    over: dict[str, Interval] = field(default_factory=dict)
    slower_than: list[str] = field(default_factory=list)
    fault: str = ""

    @property
    def now(self) -> Interval | None:
        ours = self.times.get(self.again.ours)
        return median_interval(ours) if ours else None

    @property
    def moved(self) -> float | None:
        """Its time now over what the table says, less 1."""
        then, now = self.again.rule.median_us, self.now
        return now.median / then - 1 if now and then else None


def sample(table: Table, topology: Any, seed: int, most: int = RULES) -> list[Again]:
    """Rules to measure anew: all, or, of each kind of call, some by chance. None of those for memory of GPUs."""
    rng, kinds = random.Random(seed), list[list[Again]]()
    for _, rules in groupby(table.rules, key=lambda rule: rule.key):
        every = [again(rule, topology) for rule in rules if rule.storage != GPU]
        kinds.append(rng.sample(every, len(every)))
    found = list[Again]()
    while len(found) < most and any(kinds):
        found += [kind.pop() for kind in kinds if kind][: most - len(found)]
    order = {id(rule): place for place, rule in enumerate(table.rules)}
    return sorted(found, key=lambda each: order[id(each.rule)])


def again(rule: Rule, topology: Any) -> Again:
    dtype, op = representative(rule)
    nbytes = size(rule, ITEMSIZE[dtype])
    kind = op if rule.collective in REDUCING else None
    thumb = choose(None, topology, rule.collective, nbytes, dtype, kind, storage=rule.storage)
    ours = candidate(rule.algorithm, rule.params)
    others = {DEFAULT: candidate(thumb.algorithm, thumb.params)}
    if rule.runner_up:
        others[RUNNER_UP] = candidate(rule.runner_up.algorithm, rule.runner_up.params)
    return Again(rule, dtype, op, nbytes, ours, {name: each for name, each in others.items() if each != ours})


def representative(rule: Rule) -> tuple[str, str]:
    """A dtype and an operation that the rule is for."""
    dtype = REPRESENTATIVE.get(rule.dtype, rule.dtype if rule.dtype in ITEMSIZE else "float32")
    op = REPRESENTATIVE.get(rule.op, rule.op if any(rule.op in names for names in OP_CLASSES.values()) else "sum")
    bits = op in OP_CLASSES["bitwise"] and dtype not in DTYPE_CLASSES["integer"]
    return ("int32" if bits else dtype), op


def size(rule: Rule, item: int) -> int:
    """Bytes at which the rule was measured, or of the smallest whole message that it serves."""
    given = rule.measured_bytes if rule.measured_bytes is not None else max(rule.min_bytes, item)
    return max(item, math.ceil(given / item) * item)


def measure(
    session: Session, asked: Sequence[Again], seconds: float, seed: int, told: Callable[[float, str], None]
) -> tuple[list[Finding], str | None]:
    """Rank 0: what came of each rule, judged; and why it ended early, if it did."""
    findings, rng = [Finding(each) for each in asked], random.Random(seed)
    began, ended = monotonic(), None
    turns = [finding for _ in range(ROUNDS) for finding in rng.sample(findings, len(findings))]
    try:
        for place, finding in enumerate(turns):
            if finding.fault:
                continue
            until = monotonic() + max(0.0, began + seconds - monotonic()) / (len(turns) - place)
            told(place / len(turns), str(finding.again.rule))
            if take(session, finding, until):
                ended = "interrupted"
                break
    except Stopped as error:
        ended = str(error)
    judge(findings)
    return findings, ended


def take(session: Session, finding: Finding, until: float) -> bool:
    """Time a rule and what is beside it, for as long; whether there was an interrupt."""
    blocks, room = BLOCKS[0], BLOCKS[1]
    while room > 0:
        outcome = session.measure(finding.again.job(blocks, session.jobs))
        ours = finding.again.ours
        if ours in outcome.faults:
            finding.fault = outcome.faults[ours]
        for each, us in outcome.times.items():
            finding.times.setdefault(each, []).extend(us)
        room -= blocks
        left = until - monotonic()
        if outcome.interrupted or finding.fault or left <= 0:
            return outcome.interrupted
        blocks = min(within(int(left / 2 / max(outcome.block_seconds, 1e-6)), BLOCKS), max(1, room))
    return False


def judge(findings: Sequence[Finding]) -> None:
    """Says of each which others are faster now, all comparisons of the check considered together."""
    pairs = [
        (finding, name, finding.times[finding.again.ours], finding.times[other])
        for finding in findings for name, other in finding.again.others.items()
        if finding.times.get(finding.again.ours) and finding.times.get(other) and not finding.fault
    ]  # fmt: skip
    corrected = holm([signed_rank(theirs, ours) for _, _, ours, theirs in pairs])
    for (finding, name, ours, theirs), p in zip(pairs, corrected, strict=True):
        over = finding.over[name] = ratio_interval(ours, theirs)
        if p < SIGNIFICANT and over.low > 1 and over.median > 1 + SLACK[name]:
            finding.slower_than.append(name)
