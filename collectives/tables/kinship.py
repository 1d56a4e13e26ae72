"""Which tuning table serves a topology: one that was measured on it, else the nearest of its kind, else none.

Of one kind are topologies with the same links, device and transport, all of them on one node or all of them on several.
A table of the same kind serves where what it knows was measured on links whose costs it has, and nodes and ranks per
node are at most twice, or half, as many: what is fast on 2x2 is no guess for 2x4, but it is one for 64x8.
"""

import math
from collections.abc import Iterable
from typing import Protocol

from collectives.tables.table import Place, Table

EXACT, NEAR = "exact", "near"
FARTHEST = 1.0  # of nodes, and of ranks per node: the logarithm to base 2 of how many times as many


class Topology(Protocol):
    """What this needs of a communicator's topology; one that lacks links and the rest is near to none."""

    @property
    def nodes(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def fingerprint(self) -> str: ...


def kinship(table: Table, topology: Topology) -> str | None:
    """EXACT, NEAR, or None where the table says nothing of this topology."""
    if table.topology.fingerprint == topology.fingerprint:
        return EXACT
    return NEAR if distance(table, topology) < math.inf else None


def nearest(tables: Iterable[Table], topology: Topology) -> Table | None:
    """Of several tables the one to use: an exact one, else the nearest; of equally near ones the first."""
    found = [(kinship(table, topology) != EXACT, distance(table, topology), table) for table in tables]
    kin = [each for each in found if not each[0] or each[1] < math.inf]
    return min(kin, key=lambda each: each[:2])[2] if kin else None


def distance(table: Table, topology: Topology) -> float:
    """0 for the topology itself; infinite for another kind, for one too far away, and without costs of links."""
    place = table.topology
    kind = len(place.ranks_per_node) > 1, place.links, place.device, transport(place)
    here = (
        len(topology.nodes) > 1,
        list(getattr(topology, "links", ())),
        getattr(topology, "device", None),
        transport(topology),
    )
    if kind != here or not table.links:
        return math.inf
    nodes: float = abs(math.log2(place.nodes / len(topology.nodes)))
    ranks: float = abs(math.log2(max(place.ranks_per_node) / max(map(len, topology.nodes))))
    if max(nodes, ranks) > FARTHEST:
        return math.inf
    machine: int = sum(getattr(place, field) != getattr(topology, field, "") for field in ("cpu", "mpi", "network"))
    uneven = len(set(place.ranks_per_node)) > 1
    return nodes + ranks + machine / 2 + abs(uneven - (len(set(map(len, topology.nodes))) > 1)) / 4


def transport(place: Place | Topology) -> str:
    """How messages travel between nodes, however fast."""
    return str(getattr(place, "network", "")).partition(" at ")[0]
