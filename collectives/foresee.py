"""How long a collective takes on a network that may not exist, and which algorithm would be the best there."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from collectives.algorithms import KERNEL_BYTES, SEGMENT_BYTES, find
from collectives.network import MPI, SHARED_MEMORY, Network
from collectives.simulate import simulate
from collectives.traffic import Traffic, traffic

KERNELS = {"one_shot": "one-shot", "two_shot": "staged", "direct": "staged", "single_copy": "single-copy"}
# Algorithms of which a node kernel does the work where all ranks share a node: the class of links that it is.


@dataclass(frozen=True)
class Foreseen:
    """Microseconds, with the interval in which 95 % of measured times would lie where the network's links know that.

    busy: the share of the time for which the busiest resource of each kind works. alike: whether one block of nodes was
    simulated for all.
    """

    algorithm: str
    params: Mapping[str, Any]
    us: float
    low_us: float | None
    high_us: float | None
    busy: Mapping[str, float]
    alike: bool


class Foresight:
    """Predictions for one network; schedules are emitted once for all sizes.

    memory: bytes that one simulation may use (by default, half of what is available).
    """

    def __init__(self, network: Network, memory: int | None = None):
        self.network, self.memory = network, available() // 2 if memory is None else memory
        self._placed = network.placed
        self._traffic: dict[tuple[Any, ...], Traffic] = {}

    def predict(self, collective: str, algorithm: str, nbytes: int, *, root: int = 0, **params: Any) -> Foreseen:
        """ValueError where the algorithm cannot serve, UnsupportedError where simulating it takes too much memory."""
        found = find(collective, algorithm)
        full = found.check(**params)
        segment_bytes, piece = full.get(SEGMENT_BYTES.name), full.get(KERNEL_BYTES)
        kernel = KERNELS.get(algorithm) if self.network.nodes == 1 and not segment_bytes else None
        moving = self._of(collective, algorithm, root, full, kernel)
        done = simulate(moving, nbytes, segment_bytes, piece if kernel else None)
        inside = self.network.link(kernel or SHARED_MEMORY, nbytes)
        used = [inside] * (max(self.network.sizes) > 1) + [self.network.link(MPI, nbytes)] * (self.network.nodes > 1)
        errors = [link.error for link in used if link.error is not None]
        error = max(errors) if errors else None
        low, high = (done.us / error, done.us * error) if error else (None, None)
        return Foreseen(algorithm, params, done.us, low, high, done.busy, moving.symmetric)

    def _of(self, collective: str, algorithm: str, root: int, full: Mapping[str, Any], kernel: str | None) -> Traffic:
        """The traffic, which depends on whether there are segments, not on how long they are."""
        settings = {name: value for name, value in full.items() if name != KERNEL_BYTES}
        if settings.get(SEGMENT_BYTES.name) is None:
            settings.pop("slots", None)
        else:
            settings[SEGMENT_BYTES.name] = 1
        key = collective, algorithm, root, kernel, tuple(sorted(settings.items()))
        if key not in self._traffic:
            emit, ranks = find(collective, algorithm).schedule, range(self.network.ranks)
            self._traffic[key] = traffic(
                self.network,
                lambda rank: emit(ranks, rank, nodes=self._placed, root=root, **settings),
                kernel,
                self.memory,
            )
        return self._traffic[key]

    def ranked(
        self, collective: str, nbytes: int, candidates: Iterable[tuple[str, Mapping[str, Any]]]
    ) -> list[Foreseen]:
        """Candidates, as (algorithm, parameters), the fastest first; of equally fast ones the first."""
        found = [self.predict(collective, name, nbytes, **params) for name, params in candidates]
        return sorted(found, key=lambda each: each.us)


def available() -> int:
    """Bytes of memory that the kernel says are available."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
