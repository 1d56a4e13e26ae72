"""Which ranks share a node, and what links them: found with MPI's own notion of shared memory, not from host names."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any


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


def discover(comm: Any, node: Any, shares_memory: bool) -> Topology:
    """The topology of an mpi4py communicator whose ranks on this node are `node`. Collective."""
    from array import array

    from mpi4py import MPI

    leader, leaders = array("i", [comm.rank]), array("i", [0] * comm.size)
    shares = array("i", [node.size > 1 and shares_memory, node.size == 1 or shares_memory])
    node.Bcast([leader, MPI.INT], root=0)
    comm.Allgather([leader, MPI.INT], [leaders, MPI.INT])
    anywhere, everywhere = array("i", [0, 0]), array("i", [0, 0])
    comm.Allreduce([shares, MPI.INT], [anywhere, MPI.INT], op=MPI.MAX)
    comm.Allreduce([shares, MPI.INT], [everywhere, MPI.INT], op=MPI.MIN)
    nodes = group_by(leaders)
    links = ("shared-memory",) * anywhere[0] + ("mpi",) * (len(nodes) > 1 or not everywhere[1])
    return Topology(nodes, links, processor(), mpi_library())


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
