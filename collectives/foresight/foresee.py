"""How long a collective takes on a network that may not exist, and which algorithm would be the best there."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from collectives.algorithms import KERNEL_BYTES, SEGMENT_BYTES, SLOTS, find
from collectives.foresight.fabric import Costs
from collectives.foresight.network import MPI, Network
from collectives.foresight.traffic import Traffic, traffic
from collectives.simulate import Simulated, simulate

KERNELS = {"one_shot": "one-shot", "two_shot": "staged", "direct": "staged", "single_copy": "single-copy"}
# Algorithms of which a node kernel does the work where all ranks share a node: the class of links that it is.


@dataclass(frozen=True)
class Foreseen:
    """Microseconds, with the interval in which 95 % of measured times would lie where the network's links know that.

    busy: the share of the time for which the busiest resource of each kind works. messages: how many were simulated.
    alike: whether one block of nodes stood for all.
    """

    algorithm: str
    params: Mapping[str, Any]
    us: float
    low_us: float | None
    high_us: float | None
    busy: Mapping[str, float]
    messages: int
    alike: bool


@dataclass(frozen=True)
class Moving:
    """An algorithm's traffic, and what it is cut into."""

    traffic: Traffic
    segment_bytes: int | None
    piece_bytes: int | None

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of links that are there."""
        network, inside = self.traffic.fabric.network, self.traffic.fabric.inside
        return (inside,) * (max(network.sizes) > 1) + (MPI,) * (network.nodes > 1)

    def simulate(self, nbytes: int, costs: dict[str, Costs] | None = None) -> Simulated:
        return simulate(self.traffic, nbytes, self.segment_bytes, self.piece_bytes, costs)


class Foresight:
    """Predictions for one network; schedules are emitted once for all sizes.

    memory: bytes that one simulation may use (by default, half of what is available).
    """

    def __init__(self, network: Network, memory: int | None = None):
        self.network, self.memory = network, available() // 2 if memory is None else memory
        self._placed, self._nest = network.placed, network.nest
        self._traffic: dict[tuple[Any, ...], Traffic] = {}

    def predict(self, collective: str, algorithm: str, nbytes: int, *, root: int = 0, **params: Any) -> Foreseen:
        """ValueError where the algorithm cannot serve, UnsupportedError where simulating it takes too much memory."""
        moving = self.moving(collective, algorithm, root, params)
        done = moving.simulate(nbytes)
        used = [self.network.link(name, nbytes) for name in moving.classes]
        error = max((link.error for link in used if link.error is not None), default=None)
        low, high = (done.us / error, done.us * error) if error else (None, None)
        return Foreseen(algorithm, params, done.us, low, high, done.busy, done.messages, moving.traffic.symmetric)

    def moving(self, collective: str, algorithm: str, root: int, params: Mapping[str, Any]) -> "Moving":
        """What can be simulated of an algorithm. Its traffic depends on whether there are segments, not on how long."""
        full = find(collective, algorithm).check(**params)
        segment_bytes, piece = full.get(SEGMENT_BYTES.name), full.pop(KERNEL_BYTES, None)
        kernel = KERNELS.get(algorithm) if self.network.nodes == 1 and not segment_bytes else None
        if segment_bytes is None:
            full.pop(SLOTS.name, None)
        settings = {name: 1 if name == SEGMENT_BYTES.name and value else value for name, value in full.items()}
        key = collective, algorithm, root, kernel, tuple(sorted(settings.items()))
        if key not in self._traffic:
            self._traffic[key] = self._of(collective, algorithm, root, settings, kernel)
        return Moving(self._traffic[key], segment_bytes, piece if kernel else None)

    def _of(
        self, collective: str, algorithm: str, root: int, settings: Mapping[str, Any], kernel: str | None
    ) -> Traffic:
        found, ranks = find(collective, algorithm), range(self.network.ranks)
        nodes = self._nest if found.nested else self._placed
        return traffic(
            self.network,
            lambda rank: found.schedule(ranks, rank, nodes=nodes, root=root, **settings),
            kernel,
            self.memory,
        )

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
