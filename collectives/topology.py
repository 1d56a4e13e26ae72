"""Which ranks share a node, and what links them: found from who can share memory, not from host names."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from collectives import nest
from collectives.ranks import machine
from collectives.ranks.machine import UNBOUND, Machine, processor
from collectives.ranks.peers import Peers

__all__ = ["NO_MPI", "Topology", "discover", "group_by", "mpi_library", "processor"]

NO_MPI = "no MPI"  # instead of a library's name


@dataclass(frozen=True)
class Topology:
    """Ranks of a communicator by node (uneven and interleaved allowed), link classes, and the machines.

    network: transport and speed between nodes, "" where all ranks share one. hosts: what each node calls itself, for
    people; neither unique nor part of the fingerprint. domains: ranks by NUMA domain, each within its node; empty where
    ranks are not bound to domains, or none holds several. gpus: of each node. switches: above each node, by name, the
    network's core first.
    """

    nodes: tuple[tuple[int, ...], ...]
    links: tuple[str, ...]  # shared-memory within nodes, mpi between them or where memory cannot be shared
    cpu: str
    mpi: str
    device: str | None = None
    network: str = ""
    hosts: tuple[str, ...] = ()
    domains: tuple[tuple[int, ...], ...] = ()
    gpus: tuple[int, ...] = ()
    switches: tuple[tuple[str, ...], ...] = ()

    @cached_property
    def ranks(self) -> int:
        return sum(map(len, self.nodes))

    @cached_property
    def ranks_per_node(self) -> tuple[int, ...]:
        return tuple(map(len, self.nodes))

    @cached_property
    def nest(self) -> tuple[Any, ...]:
        """Ranks in groups of groups: NUMA domains, nodes, and what hangs on one switch, as far as these are known."""
        nodes: list[Any] = list(self.nodes)
        if self.domains:
            nodes = [tuple(domain for domain in self.domains if domain[0] in node) for node in nodes]
        return nest.by_path(nodes, self.switches or [()] * len(nodes))

    @cached_property
    def fingerprint(self) -> str:
        """Readable, and equal where a tuning table may be used as it is."""
        between = f" over {self.network}" if self.network else ""
        mpi = f"{self.mpi}{between}"
        return " | ".join((f"{self.shape}{self.order}", "+".join(self.links), self.cpu, mpi, self.device or "cpu"))

    @property
    def shape(self) -> str:
        """2x4 for two nodes of four ranks, 3+1 for uneven ones."""
        sizes = self.ranks_per_node
        return f"{len(sizes)}x{sizes[0]}" if len(set(sizes)) == 1 else "+".join(map(str, sizes))

    @property
    def order(self) -> str:
        """Whether a node's ranks do not follow each other, which algorithms that know no nodes feel; and the racks."""
        follow = all(node == tuple(range(node[0], node[0] + len(node))) for node in self.nodes)
        racks = nest.by_path([0] * len(self.nodes), self.switches) if self.switches else ()
        under = f" on switches of {nest.name(racks)}" if racks and not isinstance(racks[0], int) else ""
        return ("" if follow else " interleaved") + under

    def node_of(self, rank: int) -> int:
        return next(i for i, node in enumerate(self.nodes) if rank in node)

    def name(self, rank: int) -> str:
        """A rank for a person, with its host where there are several."""
        several = len(set(self.hosts)) > 1
        return f"rank {rank} on {self.hosts[self.node_of(rank)]}" if several else f"rank {rank}"


def group_by(leaders: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Nodes from each rank's leader, the lowest rank of its node."""
    return tuple(tuple(r for r, x in enumerate(leaders) if x == leader) for leader in sorted(set(leaders)))


def discover(comm: Peers, node: Peers, shares_memory: bool) -> Topology:
    """The topology of `comm`, whose ranks on this node are `node`. Collective."""
    leader = node.words(comm.rank)[0][0]
    leaders, needless, sharing = zip(*comm.words(leader, node.size == 1, shares_memory), strict=True)
    nodes = group_by(leaders)
    anywhere = any(shares and not alone for alone, shares in zip(needless, sharing, strict=True))
    everywhere = all(shares or alone for alone, shares in zip(needless, sharing, strict=True))
    links = ("shared-memory",) * anywhere + ("mpi",) * (len(nodes) > 1 or not everywhere)
    told = {**asdict(machine.look()), "transport": machine.transport()}  # after ranks have spoken to each other
    everyone = [json.loads(each) for each in comm.exchange(json.dumps(told).encode())]
    transports = [each.pop("transport") for each in everyone]
    machines = [Machine(**{**each, "switches": tuple(each["switches"])}) for each in everyone]
    firsts = [machines[ranks[0]] for ranks in nodes]
    return Topology(
        nodes,
        links,
        listing(each.processors for each in firsts),
        NO_MPI if comm.mpi is None else mpi_library(),
        network=network(transports, firsts) if len(nodes) > 1 else "",
        hosts=tuple(each.name for each in firsts),
        domains=domains(nodes, machines),
        gpus=tuple(each.gpus for each in firsts),
        switches=tuple(each.switches for each in firsts) if any(each.switches for each in firsts) else (),
    )


def listing(names: Iterable[str]) -> str:
    """What differs between nodes, each once, whatever the order of nodes."""
    return " and ".join(sorted(set(names)))


def network(transports: Iterable[str], machines: Sequence[Machine]) -> str:
    """Transport and speed between nodes: that of the slowest interface, where all say what theirs is."""
    slowest = min(each.mbits for each in machines)
    return listing(transports) + (f" at {slowest / 1000:g} Gbit/s" if slowest > 0 else "")


def domains(nodes: Sequence[Sequence[int]], machines: Sequence[Machine]) -> tuple[tuple[int, ...], ...]:
    """Ranks by NUMA domain, where every rank is bound to one and some node has ranks in several."""
    if any(each.domain == UNBOUND for each in machines):
        return ()
    parts = [group_by([machines[rank].domain for rank in node]) for node in nodes]
    if all(len(part) == 1 for part in parts):
        return ()
    return tuple(
        tuple(node[place] for place in group) for node, part in zip(nodes, parts, strict=True) for group in part
    )


def mpi_library() -> str:
    """Name and version of the MPI library that mpi4py uses."""
    from mpi4py import MPI

    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"
