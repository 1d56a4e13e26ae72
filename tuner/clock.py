"""A budget of seconds."""

from dataclasses import dataclass, field
from time import monotonic


@dataclass
class Clock:
    """Runs from when it is made."""

    seconds: float
    started: float = field(default_factory=monotonic)

    @property
    def left(self) -> float:
        return self.started + self.seconds - monotonic()

    def part(self, share: float) -> "Clock":
        """A clock of that share of what is left."""
        return Clock(max(0.0, self.left * share))
