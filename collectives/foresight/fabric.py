"""What a message occupies on its way through a network, and which nodes are alike.

Resources are numbers; each serves one message after the other. A rank has a processor, a port out and a port in; a
node an interface out and in; a switch up-links and down-links; a node of a torus a link in each direction.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from collectives.foresight.network import MIB, MPI, SHARED_MEMORY, Network

PORT, INTERFACE, TORUS, LEVEL = range(4)  # kinds of resources, by what they cost; LEVEL + i is the tree's i-th level
PROCESSOR, OUT, IN = range(3)  # of a rank, in the order of their numbers


class Route(NamedTuple):
    """`link` is the class of links, `hops` are (resource, kind) in order; `alpha_us` is what the way adds."""

    link: str
    alpha_us: float
    hops: tuple[tuple[int, int], ...]


class Costs(NamedTuple):
    """Of one class of links in a collective of one size: microseconds, and microseconds a byte by kind of resource."""

    alpha: float
    gap: float
    start: float
    gamma: float
    per_byte: tuple[float, ...]
    eager: float


class Fabric:
    """Ways through a network whose ranks are numbered node by node.

    `kernel`: the class of links within a node, where it is not the ordinary one. `block`: how many nodes are simulated,
    from the first on; a node after these has its image in them, and so have its ranks. None: all.
    """

    def __init__(self, network: Network, kernel: str | None = None, block: int | None = None):
        self.network, self.inside = network, kernel or SHARED_MEMORY
        sizes = network.sizes
        self.first = list(accumulate(sizes, initial=0))
        self.node_of = [node for node, size in enumerate(sizes) for _ in range(size)]
        self.block = block or network.nodes  # nodes that are simulated; all others are images of these
        ranks = self.first[self.block]
        self._half = network.link(self.inside, 0).half_duplex
        self._nodes = 3 * ranks
        self._switches, top = [], self._nodes + 2 * self.block
        for level in network.levels:
            self._switches.append(top)
            top += 2 * -(-self.block // level.nodes)
        self._grid = top
        self.resources = top + (2 * len(network.torus.shape) * self.block if network.torus else 0)

    # ------------------------------------------------------------ ways
    def route(self, source: int, target: int) -> Route:
        """From a rank that is simulated to any rank."""
        a, b = self.node_of[source], self.node_of[target]
        image = b % self.block
        here, there = 3 * source, 3 * (self.first[image] + target - self.first[b])
        if a == b:
            ends = ((here + PROCESSOR, PORT), (there + PROCESSOR, PORT))
            return Route(self.inside, 0.0, ends if self._half else ((here + OUT, PORT), (there + IN, PORT)))
        alpha, hops = 0.0, [(here + OUT, PORT)]
        if self.network.interface:
            hops.append((self._nodes + 2 * a, INTERFACE))
        crossed = [i for i, level in enumerate(self.network.levels) if a // level.nodes != b // level.nodes]
        for i in crossed:
            alpha += self.network.levels[i].alpha_us
            hops.append((self._switches[i] + 2 * (a // self.network.levels[i].nodes), LEVEL + i))
        hops += [
            (self._switches[i] + 2 * (image // self.network.levels[i].nodes) + 1, LEVEL + i) for i in reversed(crossed)
        ]
        if self.network.torus:
            along = self._torus(a, b)
            alpha += len(along) * self.network.torus.alpha_us
            hops += [(resource, TORUS) for resource in along]
        if self.network.interface:
            hops.append((self._nodes + 2 * image + 1, INTERFACE))
        return Route(MPI, alpha, (*hops, (there + IN, PORT)))

    def _torus(self, a: int, b: int) -> list[int]:
        """The links from node to node, dimension by dimension."""
        assert self.network.torus is not None
        shape, links = self.network.torus.shape, []
        for axis, length in enumerate(shape):
            stride = math.prod(shape[axis + 1 :])
            ahead = (b // stride - a // stride) % length
            backwards = 2 * ahead > length
            for _ in range(length - ahead if backwards else ahead):
                links.append(self._grid + 2 * (a * len(shape) + axis) + backwards)
                place = a // stride % length
                a += ((place + (-1 if backwards else 1)) % length - place) * stride
        return links

    def kind(self, resource: int) -> str:
        """What a person calls the resource."""
        if resource < self._nodes:
            return ("processor", "port", "port")[resource % 3]
        if resource < (self._switches[0] if self._switches else self._grid):
            return "interface"
        if resource >= self._grid:
            return "torus link"
        return f"up-link of level {max(i for i, first in enumerate(self._switches) if resource >= first)}"


def costs_of(network: Network, inside: str, nbytes: int) -> dict[str, Costs]:
    """Of the classes of links within nodes and between them, in a collective on so many bytes."""
    shared = network.interface.beta_us_per_MiB / MIB if network.interface else 0.0
    grid = network.torus.beta_us_per_MiB / MIB if network.torus else 0.0
    levels = [shared * level.oversubscription / level.nodes for level in network.levels]
    found = {}
    for name in (inside, MPI) if network.nodes > 1 else (inside,):
        link = network.link(name, nbytes)
        kinds = (link.beta_us_per_MiB / MIB, shared, grid, *levels)
        eager = math.inf if link.eager_bytes is None else link.eager_bytes
        found[name] = Costs(link.alpha_us, link.gap_us, link.start_us, link.gamma_us_per_MiB / MIB, kinds, eager)
    return found


def alike(network: Network) -> int | None:
    """How many nodes, in a row, make a block that the others repeat; None where nothing repeats."""
    sizes = network.sizes
    block = network.levels[-1].nodes if network.levels else 1
    regular = len(set(sizes)) == 1 and network.nodes % block == 0
    return block if regular and network.torus is None and network.nodes > block else None


def blocks(network: Network, block: int) -> Sequence[int]:
    """Blocks whose schedules are looked at beside that of the first: all where they are few."""
    count = network.nodes // block
    return range(1, count) if count <= 8 else sorted({1, 2, 3, count // 2, count - 1})
