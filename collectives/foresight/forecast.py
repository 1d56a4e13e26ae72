"""What should serve a call on a topology that has no tuning table: the best by the costs of its links alone.

All ranks that hold the same links come to the same choice: nothing is measured, and what is simulated is limited by
counting, never by the clock or by what memory is free.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from collectives.algorithms import KERNEL_BYTES, SEGMENT_BYTES, SLOTS, Algorithm, every
from collectives.errors import UnsupportedError
from collectives.foresight.foresee import Foreseen, Foresight
from collectives.foresight.network import MPI, SHARED_MEMORY, of_links
from collectives.foresight.traffic import STEP_BYTES
from collectives.nest import Nest
from collectives.selection import FIXED_ORDER
from collectives.tables.choice import Choice, Sentence, Topology
from collectives.tables.table import LinkCost, Table

SEGMENT = 1 << 16  # bytes: of the pipelines and the pieces that are looked at, beside plain rounds
MOST_STEPS = 10_000  # of an algorithm, on all ranks that are simulated: about a second
MOST_MESSAGES = 60_000  # of a pipeline
LOOSEST = 2.0  # times a forecast: where times may lie farther from it than that, it is no better than a rule of thumb
TIE = 0.01  # nearer than this to the best is as good, and the simplest of those is taken


@dataclass
class Forecast:
    """Choices on one topology. links: as in a tuning table; classes that are lacking have typical costs.

    nodes: the ranks of each node; only how many they are counts. nest: the same in groups of groups, where it has any.
    """

    links: Sequence[LinkCost]
    nodes: Sequence[Sequence[int]]
    nest: Nest | None = None
    _known: dict[tuple[str, int, bool], Foreseen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._foresight = Foresight(of_links(self.links, self.nodes), memory=MOST_STEPS * STEP_BYTES)

    def best(self, collective: str, nbytes: int, *, deterministic: bool = False) -> Foreseen:
        """The fastest algorithm and parameters for a message of nbytes, with the interval where the links know it.

        deterministic: of those that fold all ranks in order. ValueError where none can serve.
        """
        key = collective, nbytes, deterministic
        if key not in self._known:
            self._known[key] = self._best(*key)
        return self._known[key]

    def _best(self, collective: str, nbytes: int, deterministic: bool) -> Foreseen:
        ranks = sum(map(len, self.nodes))
        found: list[Foreseen] = []
        for algorithm in every(collective):
            fixed = algorithm.name in FIXED_ORDER.get(collective, (algorithm.name,))
            flat = len(self.nodes) in (1, ranks)
            unfit = algorithm.symmetric or (algorithm.needs_nodes and flat) or (deterministic and not fixed)
            groups = self.nest if algorithm.nested and self.nest else self.nodes
            if not unfit and not algorithm.lack(ranks, groups):
                found += self._of(algorithm, nbytes)
        if not found:
            raise ValueError(f"no algorithm of {collective} can be foreseen for {ranks} ranks")
        least = min(each.us for each in found)
        return next(each for each in found if each.us <= least * (1 + TIE))

    def _of(self, algorithm: Algorithm, nbytes: int) -> list[Foreseen]:
        """Plain rounds, and what cuts the message where that is not too much to look at."""
        names, variants = {parameter.name for parameter in algorithm.parameters}, list[dict[str, Any]]()
        if nbytes > SEGMENT:
            variants += [{KERNEL_BYTES: SEGMENT}] * (KERNEL_BYTES in names and len(self.nodes) == 1)
            variants += [{SEGMENT_BYTES.name: SEGMENT, SLOTS.name: 2}] * algorithm.pipelined
        try:
            plain = self._foresight.predict(algorithm.collective, algorithm.name, nbytes)
        except UnsupportedError:  # too much to look at
            return []
        if plain.messages * min(48, nbytes // SEGMENT) > MOST_MESSAGES:
            return [plain]
        return [plain, *(self._foresight.predict(algorithm.collective, algorithm.name, nbytes, **v) for v in variants)]


def foreseen(
    table: Table, topology: Topology, collective: str, nbytes: int, deterministic: bool, instead: Choice
) -> Choice | None:
    """What the costs of a table's links say for a topology that its rules are not for.

    None where it lacks such costs, or knows them so badly that a rule of thumb is as good a guess.

    instead: the rule of thumb's choice, whose reason says why the table's rules do not serve. Sizes are looked at in
    powers of two, so that few are.
    """
    there = {link.class_ for link in table.links}
    needed = {SHARED_MEMORY} if max(map(len, topology.nodes)) > 1 else set[str]()
    needed |= {MPI} if len(topology.nodes) > 1 else set()
    if not needed or not needed <= there:
        return None
    known: dict[str, Forecast] = table.__dict__.setdefault("forecasts", {})
    if topology.fingerprint not in known:
        known[topology.fingerprint] = Forecast(table.links, topology.nodes, getattr(topology, "nest", None))
    near = 1 << (nbytes * nbytes).bit_length() // 2  # of the powers of two, by the ratio
    try:
        best = known[topology.fingerprint].best(collective, near, deterministic=deterministic)
    except ValueError:
        return None
    if best.high_us and best.high_us > LOOSEST * best.us:
        return None
    why = Sentence(_by_costs, (instead, best, near))
    source = f"links of {table.origin}"
    return Choice(best.algorithm, dict(best.params), basis="model", source=source, why=why)


def _by_costs(instead: Choice, best: Foreseen, nbytes: int) -> str:
    because = instead.reason.partition("; by default")[0]
    between = f" ({best.low_us:.3g} to {best.high_us:.3g})" if best.low_us and best.high_us else ""
    return f"{because}; by the costs of its links {best.algorithm} takes {best.us:.3g} us{between} at {nbytes} bytes"
