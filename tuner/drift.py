"""One call that is timed again and again while a machine is measured: what moves it moves everything."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from collectives.tables.conditions import DRIFTED
from tuner import units
from tuner.decision import Measured
from tuner.measure import Outcome
from tuner.space import Candidate

BLOCKS = 15
NBYTES = 4096


@dataclass
class Watch:
    """`look()` times the reference, which nothing else depends on: candidates are compared within their own blocks."""

    reference: Measured
    measure: Callable[[Measured, list[Candidate], int], Outcome]
    us: list[float] = field(default_factory=list)  # medians, in their order

    def look(self) -> None:
        found = self.measure(self.reference, [self.reference.default], BLOCKS).times.get(self.reference.default)
        if found:
            self.us.append(median(found))

    @property
    def drift(self) -> float | None:
        """How many times as long it took at its worst as at its best; None where it was not timed twice."""
        return max(self.us) / min(self.us) if len(self.us) > 1 else None

    def __str__(self) -> str:
        """What is to be said of it; empty where the machine held still."""
        drift = self.drift
        if drift is None or drift < DRIFTED:
            return ""
        what = f"{self.reference.default} of {units.size(self.reference.nbytes)}"
        first, best, worst = (units.time(us) for us in (self.us[0], min(self.us), max(self.us)))
        return (
            f"the machine drifted: {what} took {first} at first, and {best} to {worst} in {len(self.us)} looks; "
            "candidates were compared in the same moments, but times of different sizes are not of the same"
        )
