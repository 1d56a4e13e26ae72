"""A launch of ranks for each look at a candidate, in rounds: what drifts hits all candidates alike."""

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from tuner import launch
from tuner.space import Candidate
from tuner.targets.target import DEFAULT, Target

START_SECONDS = 90.0  # that a launch may take beside its measuring
MODULE = "tuner.targets.rank"
LAST = 600  # characters of what a failed launch said


class Fault(Exception):
    """A launch that did not come to its end, or whose result was wrong."""


@dataclass
class Look:
    """What one launch found at each size: median microseconds, and digests, see tuner.targets.rank ("" unknown)."""

    us: dict[int, float]
    bits: dict[int, str]
    order: dict[int, str]
    nodes: list[int]


@dataclass(frozen=True)
class Request:
    """What every launch measures."""

    target: Target
    ranks: int
    collective: str
    dtype: str
    op: str
    sizes: tuple[int, ...]
    seconds: float  # of measuring, a launch

    def look(self, environment: Mapping[str, str]) -> Look:
        """One launch. Raises Fault."""
        wanted = {name: getattr(self, name) for name in ("collective", "dtype", "op", "sizes", "seconds")}
        start = launch.command(self.ranks, ["-m", MODULE, json.dumps(wanted)])
        status, out, err = run(start.command, {**start.environment, **environment}, START_SECONDS + 10 * self.seconds)
        if status is None:
            raise Fault(f"no end after {START_SECONDS + 10 * self.seconds:.0f} s")
        if status or not out.strip():
            raise Fault(f"exit status {status}: {err.strip()[-LAST:] or 'without a word'}")
        if said := self.target.refused(err):
            raise Fault(f"the library says: {said}")
        answer = json.loads(out.strip().splitlines()[-1])
        if bad := {size: n for size, n in answer["wrong"].items() if n}:
            raise Fault(f"wrong results: {bad} (bytes: elements)")
        us = {int(size): median(times) for size, times in answer["times"].items()}
        bits, order = ({int(size): digest for size, digest in answer[kind].items()} for kind in ("bits", "order"))
        return Look(us, bits, order, answer["nodes"])


def run(command: Sequence[str], environment: Mapping[str, str], timeout: float) -> tuple[int | None, str, str]:
    """Exit status (None: it was killed after `timeout` seconds) and output; no process of it is left."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **environment}, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=timeout)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        return None, "", ""
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@dataclass
class Rounds:
    """Looks at several environments, round by round in random order; one look of each in every round."""

    request: Request
    environments: dict[Candidate, dict[str, str]]
    rng: random.Random
    looks: dict[Candidate, list[Look]] = field(default_factory=dict)
    faults: dict[Candidate, str] = field(default_factory=dict)

    def round(self, told: Callable[[str], None]) -> None:
        """One more look at each; what fails once is left out from then on. Raises Fault where the default fails."""
        order = [each for each in self.environments if each not in self.faults]
        for candidate in self.rng.sample(order, len(order)):
            told(str(candidate))
            try:
                self.looks.setdefault(candidate, []).append(self.request.look(self.environments[candidate]))
            except Fault as fault:
                if candidate == DEFAULT:
                    raise
                self.faults[candidate] = str(fault)
                self.looks.pop(candidate, None)

    def us(self, candidate: Candidate, size: int) -> list[float]:
        """A median for each round."""
        return [look.us[size] for look in self.looks.get(candidate, [])]

    def bits(self, candidate: Candidate, size: int) -> str:
        """What every look at it found in the sum's bits, "" where they differ or nothing is known."""
        return _only({look.bits.get(size, "") for look in self.looks.get(candidate, [])})

    def order(self, candidate: Candidate, size: int) -> str:
        """As `bits`, of the reduction that tells its operands apart."""
        return _only({look.order.get(size, "") for look in self.looks.get(candidate, [])})


def _only(found: set[str]) -> str:
    return found.pop() if len(found) == 1 else ""
