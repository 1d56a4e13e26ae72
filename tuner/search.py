"""The search for the best candidate at each size: Optuna proposes, survivors race, noise is respected.

Rank 0 alone runs this; `measure.Session` carries its decisions to the others. For every size:

    screen   Optuna proposes candidates, a few at a time, each measured beside the default in the same blocks; what it
             is told is their median ratio, which a drifting machine does not move.
    race     the best ones, the default and the MPI library's own collective run interleaved until the best is known
             well enough or the time is up; whoever is worse beyond the noise drops out.
    decide   the default stays unless another is faster by a rank test corrected for the number of candidates; of those
             that cannot be told apart, one that serves the neighbouring sizes too, then the simplest.
"""

import math
import os
import random
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from collectives.errors import CollectiveError
from collectives.selection import ONE_PASS
from collectives.table import SYMMETRIC
from tuner import units
from tuner.decision import FASTEST, SIGNIFICANT, Constraints, Measured, decide
from tuner.measure import Job, Outcome, Session, Stopped
from tuner.space import BASELINE, Candidate, Space
from tuner.statistics import ratio_interval

FEW = 24  # candidates that are all tried
BATCH = 5  # candidates screened together
SCREEN_SHARE = 0.55  # of the budget
SCREEN_BLOCKS = (5, 25)
OVERTIME = 0.25  # of the budget, so that sizes which were screened get a short race
RACE_BLOCKS = (6, 40)  # of one round of a race
MOST_BLOCKS = 400  # of a whole race
ENOUGH_BLOCKS = 40  # of a race in which nobody rivals the default any more
RACERS = 5  # beside the default and the baseline
GUESTS = 2  # from the size below
NEAR = 1.3  # times the best screened: may still win a race
MOST_FREE = 10  # ways of the best algorithm that may not serve, beside its typical ones
HOPELESS = 4.0  # times the default: not worth more than a look
WIDTH = 0.01  # a median known this well (half its interval, relative) is known well enough


@dataclass
class Clock:
    """A budget of seconds."""

    seconds: float
    started: float = field(default_factory=monotonic)

    @property
    def left(self) -> float:
        return self.started + self.seconds - monotonic()


class Study:
    """Optuna's study of one size: asked for candidates, told their ratios; finished trials of earlier runs count."""

    def __init__(self, space: Space, name: str, storage: Any, seed: int):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space, self.optuna, self.possible = space, optuna, frozenset(space.every())
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=12)
        self.study = optuna.create_study(study_name=name, storage=storage, sampler=sampler, load_if_exists=True)
        self.known: dict[Candidate, float] = {}  # infinite: failed
        self.queued: set[Candidate] = set()
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state == optuna.trial.TrialState.COMPLETE and trial.value is not None:
                self.known[self._candidate(trial)] = trial.value
            elif trial.state == optuna.trial.TrialState.RUNNING and abandoned(trial.user_attrs.get("owner", "")):
                with suppress(ValueError):  # another tuner was faster
                    self.study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            elif trial.state == optuna.trial.TrialState.WAITING:
                self.queued.add(self.space.suggest(optuna.trial.FixedTrial(trial.system_attrs["fixed_params"])))
        self.resumed, self.rng = len(self.known), random.Random(seed)

    def _candidate(self, trial: Any) -> Candidate:
        return self.space.suggest(self.optuna.trial.FixedTrial(trial.params))

    def enqueue(self, candidates: Iterable[Candidate]) -> None:
        """Propose these first; those that are known or cannot be are left out."""
        for candidate in candidates:
            if candidate in self.possible and candidate not in self.known and candidate not in self.queued:
                self.queued.add(candidate)
                self.study.enqueue_trial(self.space.distributions(candidate))

    def ask(self) -> tuple[Any, Candidate]:
        trial = self.study.ask()
        trial.set_user_attr("owner", f"{socket.gethostname()}:{os.getpid()}")
        return trial, self.space.suggest(trial)

    def ask_unknown(self, others: Iterable[Candidate]) -> tuple[Any, Candidate] | None:
        """A trial of what is neither known nor among the others; None where nothing is left.

        Where the sampler repeats itself, which in a space of some hundred candidates it soon does, chance decides.
        """
        while unknown := sorted(self.possible.difference(self.known, others), key=str):
            trial, candidate = self.ask()
            if candidate in unknown:
                return trial, candidate
            self.tell(trial, self.known.get(candidate))
            self.enqueue([self.rng.choice(unknown)])
        return None

    def tell(self, trial: Any, value: float | None) -> None:
        """A ratio to the default, or None for a candidate that failed."""
        self.known.setdefault(self._candidate(trial), math.inf if value is None else value)
        if value is None or math.isinf(value):
            self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
        else:
            self.study.tell(trial, value)

    @property
    def exhausted(self) -> bool:
        return self.possible <= self.known.keys()


def abandoned(owner: str) -> bool:
    """Whether the process that had asked for a trial has ended; on another host nobody can tell, so no."""
    host, _, pid = owner.rpartition(":")
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    return not os.path.exists(f"/proc/{pid}")


@dataclass
class Search:
    """One tuning run of one collective, dtype and operation. `progress(done, text)` is told as budget is used."""

    session: Session
    collective: str
    dtype: str
    op: str
    clock: Clock
    seed: int
    trials: int | None = None  # proposals measured at each size; None: as the budget allows
    asked: Constraints = FASTEST
    progress: Callable[[float, str], None] | None = None
    first: Callable[[int], list[Candidate]] | None = None  # what to try first at a size
    free: Callable[[int], Space] | None = None  # of a size, with what the conditions leave out

    def run(self, sizes: Sequence[Measured], studies: Sequence[Study]) -> str | None:
        """Fills in what is measured. Returns why it ended early: an interrupt, a failure; None if it did not."""
        ended = None
        try:
            self._screen(sizes, studies)
            self._race(sizes, studies)
        except Interrupted:
            ended = "interrupted"
        except (Stopped, CollectiveError) as error:
            ended = str(error)
        decide(sizes)
        return ended

    def run_symmetric(self, sizes: Sequence[Measured]) -> tuple[list[Measured], str | None]:
        """On symmetric memory the question is only whether one pass over it beats what serves ordinary memory there.

        The sizes, measured anew with that question, and why it ended early, if it did.
        """
        default = Candidate(ONE_PASS)
        asked = replace(self.asked, allow_native=False)
        found = [Measured(size.nbytes, default, size.baseline, SYMMETRIC, asked) for size in sizes]
        ended = None
        try:
            for place, (size, ordinary) in enumerate(zip(found, sizes, strict=True)):
                size.ratios = {each: 1.0 for each in (default, ordinary.winner) if each and each != BASELINE}
                self._race_size(size, [], Clock(max(0.0, self.clock.left / (len(sizes) - place))))
                self._report(f"racing {units.size(size.nbytes)} of symmetric memory")
        except Interrupted:
            ended = "interrupted"
        except (Stopped, CollectiveError) as error:
            ended = str(error)
        decide(found)
        return found, ended

    # ------------------------------------------------------------ screening
    def _screen(self, sizes: Sequence[Measured], studies: Sequence[Study]) -> None:
        until = Clock(self.clock.left * SCREEN_SHARE)
        weights = [1 + len(study.possible) / 16 for study in studies]
        best: list[Candidate] = []
        for place, (size, study) in enumerate(zip(sizes, studies, strict=True)):
            share = Clock(max(0.0, until.left * weights[place] / sum(weights[place:])))
            first = self.first(size.nbytes) if self.first else []
            study.enqueue([size.default, *best, *first, *study.space.simplest()])
            if len(study.possible) <= FEW:
                study.enqueue(study.space.every())
            size.ratios |= study.known
            self._screen_size(size, study, share, until)
            if self.free and until.left > 0:
                self._screen_free(size, self.free(size.nbytes))
            size.ratios |= {each: 1.0 for each in best if each in study.possible and not size.ratios}
            best = size.ranked()[:3]

    def _screen_size(self, size: Measured, study: Study, share: Clock, until: Clock) -> None:
        told, seconds = 0, 0.0
        while not study.exhausted and until.left > 0 and not (told and share.left <= 0):
            room = BATCH if self.trials is None else min(BATCH, self.trials - told - study.resumed)
            batch: dict[Candidate, Any] = {}
            while len(batch) < room and (asked := study.ask_unknown(batch)):
                batch[asked[1]] = asked[0]
            if not batch:
                return
            blocks = within(int(share.left / 4 / seconds), SCREEN_BLOCKS) if seconds else SCREEN_BLOCKS[0]
            values, seconds = self._screen_batch(size, list(batch), blocks)
            for candidate, trial in batch.items():
                value = values.get(candidate)
                study.tell(trial, value)
                if value is not None:
                    size.ratios[candidate] = value
            told += len(batch)
            self._report(f"screening {units.size(size.nbytes)}")

    def _screen_free(self, size: Measured, whole: Space) -> None:
        """A look at what may not serve: each algorithm in two ways, and the best one in more."""
        others = [each for each in whole.typical() if not self.asked.allow(each)]
        for batch in (others, []):
            best = size.freest()
            more = [each for each in whole.every() if best and each.algorithm == best.algorithm]
            wanted = batch or [each for each in more if each not in size.ratios][:MOST_FREE]
            if wanted:
                values, _ = self._screen_batch(size, wanted, SCREEN_BLOCKS[0])
                size.ratios |= values

    def _screen_batch(
        self, size: Measured, batch: list[Candidate], blocks: int
    ) -> tuple[dict[Candidate, float], float]:
        """Ratios to the default of those that ran, the hopeless ones' from one look; and seconds of a block."""
        runners = [size.default, *(candidate for candidate in batch if candidate != size.default)]
        found = self._measure(size, runners, blocks, "screen", hopeless=HOPELESS)
        size.faults |= found.faults
        reference = found.times.get(size.default)
        if reference is None:
            return {}, found.block_seconds
        ratios = {each: us / found.looks[size.default] for each, us in found.looks.items()}
        ratios |= {each: ratio_interval(us, reference).median for each, us in found.times.items()}
        size.ratios[size.default] = 1.0
        return {each: ratio for each, ratio in ratios.items() if each in batch}, found.block_seconds

    # ------------------------------------------------------------ racing
    def _race(self, sizes: Sequence[Measured], studies: Sequence[Study]) -> None:
        leading: list[Candidate] = []
        for place, (size, study) in enumerate(zip(sizes, studies, strict=True)):
            if self.clock.left < -OVERTIME * self.clock.seconds:
                return
            guests = [each for each in leading if each in study.possible]
            self._race_size(size, guests, Clock(max(0.0, self.clock.left / (len(sizes) - place))))
            leading = size.leading()[:GUESTS]
            self._report(f"racing {units.size(size.nbytes)}")

    def _race_size(self, size: Measured, guests: Sequence[Candidate], share: Clock) -> None:
        """`guests`: those that led at the size below, who may lead here too."""
        ranked, few = size.ranked(), self.asked.objective.blocks
        close = [each for each in ranked if size.ratios[each] <= NEAR * size.ratios[ranked[0]]][:RACERS]
        kept = [size.default, *([BASELINE] if size.baseline else []), *filter(None, [size.freest()])]
        racing = list(dict.fromkeys([*kept, *close, *guests]))
        blocks, done = RACE_BLOCKS[0] * few, 0
        while racing and done < MOST_BLOCKS * few:
            outcome = self._measure(size, racing, blocks, "race")
            size.faults |= outcome.faults
            for candidate, us in outcome.times.items():
                size.race.setdefault(candidate, []).extend(us)
            done += blocks
            racing = [each for each in racing if each in outcome.times and (each in kept or not self._lost(size, each))]
            if share.left <= 0 or self._settled(size, racing, kept):
                break
            room = int(share.left / 2 / max(outcome.block_seconds, 1e-6))
            blocks = within(room, (RACE_BLOCKS[0] * few, RACE_BLOCKS[1] * few))

    def _lost(self, size: Measured, candidate: Candidate) -> bool:
        """Worse than the best beyond the noise."""
        length, objective = len(size.race[candidate]), self.asked.objective
        ours = [each for each in size.race if each != BASELINE and self.asked.allow(each)]
        current = {each: size.race[each] for each in ours if len(size.race[each]) == length}
        best = min(current, key=lambda each: objective.interval(current[each]).median)
        if best == candidate:
            return False
        slower = objective.ratio(current[candidate], current[best])
        return slower.low > 1 and objective.p_value(current[best], current[candidate]) < SIGNIFICANT / RACERS

    def _settled(self, size: Measured, racing: Sequence[Candidate], kept: Sequence[Candidate]) -> bool:
        """Nothing is left to tell apart, and what is left is known well."""
        rivals, objective = [each for each in racing if each not in kept], self.asked.objective
        if not rivals:
            return len(size.race[size.default]) >= ENOUGH_BLOCKS * objective.blocks
        known = all(objective.interval(size.race[each]).relative_width < WIDTH for each in racing)
        return known and len(rivals) == 1

    # ------------------------------------------------------------ both
    def _measure(
        self, size: Measured, candidates: Sequence[Candidate], blocks: int, stage: str, hopeless: float | None = None
    ) -> Outcome:
        job = Job(
            collective=self.collective, dtype=self.dtype, op=self.op, nbytes=size.nbytes, storage=size.storage,
            stage=stage, blocks=blocks, precision=self.asked.precision,
            candidates=[(each.algorithm, each.params) for each in candidates], seed=self.seed + self.session.jobs,
            hopeless=hopeless,
        )  # fmt: skip
        outcome = self.session.measure(job)
        if outcome.interrupted:
            raise Interrupted
        return outcome

    def _report(self, text: str) -> None:
        if self.progress is not None:
            self.progress(min(1.0, 1 - self.clock.left / self.clock.seconds), text)


class Interrupted(Exception):
    """A rank got an interrupt, and all know."""


def within(value: int, bounds: tuple[int, int]) -> int:
    return max(bounds[0], min(value, bounds[1]))
