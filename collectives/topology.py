"""Which ranks share a node, and what links them: found from who can share memory, not from host names."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from collectives.peers import Peers

NO_MPI = "no MPI"  # instead of a library's name


@dataclass(frozen=True)
class Topology:
    """Ranks of a communicator by node (uneven and interleaved allowed), link classes, and the machine."""

    nodes: tuple[tuple[int, ...], ...]
    links: tuple[str, ...]  # shared-memory within nodes, mpi between them or where memory cannot be shared
    cpu: str
    mpi: str
    device: str | None = None

    @cached_property
    def ranks(self) -> int:
        return sum(map(len, self.nodes))

    @cached_property
    def ranks_per_node(self) -> tuple[int, ...]:
        return tuple(map(len, self.nodes))

    @cached_property
    def fingerprint(self) -> str:
        """Readable, and equal where a tuning table may be used as it is."""
        return " | ".join((self.shape, "+".join(self.links), self.cpu, self.mpi, self.device or "cpu"))

    @property
    def shape(self) -> str:
        """2x4 for two nodes of four ranks, 3+1 for uneven ones."""
        sizes = self.ranks_per_node
        return f"{len(sizes)}x{sizes[0]}" if len(set(sizes)) == 1 else "+".join(map(str, sizes))

    def node_of(self, rank: int) -> int:
        return next(i for i, node in enumerate(self.nodes) if rank in node)


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
    return Topology(nodes, links, processor(), NO_MPI if comm.mpi is None else mpi_library())


def processor() -> str:
    """The processor's model, as the kernel names it."""
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return " ".join(line.split(":", 1)[1].split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def mpi_library() -> str:
    """Name and version of the MPI library that mpi4py uses."""
    from mpi4py import MPI

    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"
