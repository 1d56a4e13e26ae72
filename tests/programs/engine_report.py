"""What ranks found: checks of their own, and results that must be equal on all of them. Rank 0 prints it as JSON."""

import json
import sys
import time

import torch

from tests.programs import world
from tests.programs.engine_numbers import differences


class Report:
    """`wrong` collects on each rank; `agree` keeps digests that `finish` compares over all ranks."""

    def __init__(self) -> None:
        self.checks = 0
        self.wrong: list[str] = []
        self.digests: list[tuple[str, bytes]] = []
        self.seconds: dict[str, float] = {}
        self._since = time.monotonic()

    def check(self, ok: bool, what: object) -> None:
        self.checks += 1
        if not ok and len(self.wrong) < 20:
            self.wrong.append(f"rank {world.RANK}: {what}")

    def equal(self, x: torch.Tensor, wanted: torch.Tensor, what: object) -> None:
        """Bit for bit."""
        said = differences(x, wanted)
        self.check(not said, f"{what}: {said}")

    def agree(self, what: object, digest: bytes) -> None:
        self.digests.append((str(what), digest))

    def time(self, part: str) -> None:
        """What was done since the last part, for whoever wonders where the time goes."""
        now = time.monotonic()
        self.seconds[part], self._since = round(now - self._since, 2), now

    def finish(self, **more: object) -> None:
        """Print, and exit with 1 if anything was wrong. Collective."""
        for (what, digest), *others in zip(*world.everyone(self.digests), strict=True):
            same = all(other == (what, digest) for other in others)
            self.check(same, f"not equal on all ranks: {what}, of {[name for name, _ in others]}")
        found = world.everyone((self.checks, self.wrong))
        wrong = [each for _, some in found for each in some]
        if world.RANK == 0:
            checks = sum(checks for checks, _ in found)
            print(json.dumps({"checks": checks, "wrong": wrong, "seconds": self.seconds, **more}), flush=True)
        if wrong:
            sys.exit(1)
