"""The search for the best candidate at each size: Optuna proposes, survivors race, noise is respected.

Rank 0 alone runs this; `measure.Session` carries its decisions to the others. For every size:

    screen   Optuna proposes candidates, a few at a time, each measured beside the default in the same blocks; what it
             is told is their median ratio, which a drifting machine does not move.
    race     the best ones, the default and the MPI library's own collective run interleaved until the best is known
             well enough or the time is up; whoever is worse beyond the noise drops out.
    decide   the default stays unless another is faster by a rank test corrected for the number of candidates; of those
             that cannot be told apart, one that serves the neighbouring sizes too, then the simplest.
    refine   sizes between two winners race, until the border is known.
    confirm  winners are timed once more beside the default, and must be faster again.
"""

import math
import os
import random
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from collectives.dtypes import ITEMSIZE
from collectives.errors import CollectiveError
from collectives.selection import ONE_PASS
from collectives.tables.conditions import Finding
from collectives.tables.table import SYMMETRIC
from tuner import units
from tuner.clock import Clock
from tuner.confirm import confirm
from tuner.decision import FASTEST, Constraints, Measured, decide
from tuner.drift import Watch
from tuner.guidelines import check_compositions, check_measured
from tuner.measure import Job, Outcome, Session, Stopped
from tuner.race import kept, race, racers, stake
from tuner.refine import refine
from tuner.space import BASELINE, Candidate, Space
from tuner.statistics import ratio_interval

FEW = 24  # candidates that are all tried
BATCH = 5  # candidates screened together
SCREEN_SHARE = 0.55  # of the budget
SCREEN_BLOCKS = (5, 25)
REFINE_SHARE = 0.2  # of what the race has, for sizes between two winners and for guidelines
FIRST_LAP = 0.6  # of the race, the same for each size
OVERTIME = 0.25  # of the budget, so that sizes which were screened get a short race
GUESTS = 2  # from the size below
MOST_FREE = 10  # ways of the best algorithm that may not serve, beside its typical ones
HOPELESS = 4.0  # times the default: not worth more than a look


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
            if candidate in self.known:
                self.tell(trial, self.known[candidate])
            else:  # it is being tried at this moment, by somebody who will tell
                self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
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
    default: Callable[[int], Candidate] | None = None  # at a size that nobody has asked for
    watch: Watch | None = None
    free: Callable[[int], Space] | None = None  # of a size, with what the conditions leave out
    ended: str | None = None  # why, where measuring ended early
    given_way: list[Measured] = field(default_factory=list)  # whose winner was not confirmed

    def run(self, sizes: Sequence[Measured], studies: Sequence[Study]) -> str | None:
        """Fills in what is measured. Returns why it ended early, if it did."""

        def measure() -> None:
            self._screen(sizes, studies)
            self._race(sizes, studies)

        self._stage(measure)
        decide(sizes)
        return self.ended

    def run_symmetric(self, sizes: Sequence[Measured]) -> list[Measured]:
        """On symmetric memory the question is only whether one pass over it beats what serves ordinary memory there.

        The sizes, measured anew with that question.
        """
        default = Candidate(ONE_PASS)
        asked = replace(self.asked, allow_native=False)
        found = [Measured(size.nbytes, default, size.baseline, SYMMETRIC, asked) for size in sizes]
        clock = self.clock.part(1 - REFINE_SHARE)

        def measure() -> None:
            for place, (size, ordinary) in enumerate(zip(found, sizes, strict=True)):
                rival = [ordinary.winner] if ordinary.winner and ordinary.winner != BASELINE else []
                racing = list(dict.fromkeys([*kept(size), *rival]))
                race(size, racing, clock.part(1 / (len(sizes) - place)), self._racing)
                self._report(f"racing {units.size(size.nbytes)} of symmetric memory")

        self._stage(measure)
        decide(found)
        return found

    def _stage(self, what: Callable[[], None]) -> None:
        """Does it, unless measuring has ended, and notes what ends it: an interrupt, a failure."""
        if self.ended is None:
            try:
                what()
            except Interrupted:
                self.ended = "interrupted"
            except (Stopped, CollectiveError) as error:
                self.ended = str(error)

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
        """Two laps: the first gives each size its share, the second goes where it may bring most."""
        clock = self.clock.part(1 - REFINE_SHARE)
        lap, leading = clock.part(FIRST_LAP), list[Candidate]()
        running: list[list[Candidate]] = []
        for place, (size, study) in enumerate(zip(sizes, studies, strict=True)):
            if self.clock.left < -OVERTIME * self.clock.seconds:
                break
            self._look()
            guests = [each for each in leading if each in study.possible]
            running.append(race(size, racers(size, guests), lap.part(1 / (len(sizes) - place)), self._racing))
            leading = size.leading()[:GUESTS]
            self._report(f"racing {units.size(size.nbytes)}")
        stakes = {place: stake(sizes[place], still) for place, still in enumerate(running)}
        for place in sorted(stakes, key=stakes.__getitem__, reverse=True):
            if stakes[place] > 0 and clock.left > 0:
                share = clock.part(stakes[place] / sum(stakes.values()))
                race(sizes[place], running[place], share, self._racing)
                self._look()
                self._report(f"racing {units.size(sizes[place].nbytes)} again")
            del stakes[place]

    def refine(self, sizes: list[Measured], clock: Clock) -> None:
        """Inserts sizes between those with different winners."""

        def new(nbytes: int) -> Measured:
            like = sizes[0]
            known = like.default if like.storage == SYMMETRIC or self.default is None else self.default(nbytes)
            return Measured(nbytes, known, False, like.storage, like.asked, between=True)

        def between(size: Measured, racing: Sequence[Candidate], share: Clock) -> None:
            race(size, racing, share, self._racing)
            self._report(f"racing {units.size(size.nbytes)}, between two winners")

        self._stage(lambda: refine(sizes, new, between, clock, ITEMSIZE[self.dtype]))

    def confirm(self, sizes: Sequence[Measured], clock: Clock) -> None:
        """Has winners prove themselves once more; those that do not are replaced by the default."""

        def again(size: Measured, candidates: Sequence[Candidate], blocks: int) -> Outcome:
            self._report(f"confirming {units.size(size.nbytes)}")
            return self._measure(size, candidates, blocks, "confirm")

        self._stage(lambda: self.given_way.extend(confirm(sizes, again, clock)))

    def check(self, sizes: Sequence[Measured], made: Callable[[int], list[Candidate]]) -> tuple[list[Finding], int]:
        """Guidelines that do not hold, and at how many sizes compositions, made(nbytes), were measured."""
        looked: list[Finding | None] = []

        def measure(size: Measured, candidates: Sequence[Candidate], blocks: int) -> Outcome:
            return self._measure(size, candidates, blocks, "guideline")

        def compare() -> None:
            for found in check_compositions(sizes, made, measure, self.clock):
                looked.append(found)
                self._report("checking guidelines")

        self._stage(compare)
        return [*filter(None, looked), *check_measured(sizes)], len(looked)

    def watching(self, size: Measured, candidates: Sequence[Candidate], blocks: int) -> Outcome:
        """For the watch on the machine."""
        return self._measure(size, candidates, blocks, "reference")

    def _racing(self, size: Measured, candidates: Sequence[Candidate], blocks: int) -> Outcome:
        return self._measure(size, candidates, blocks, "race")

    def _look(self) -> None:
        if self.watch is not None:
            self.watch.look()

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
