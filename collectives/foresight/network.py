"""Networks to simulate: nodes, what a message costs on each class of link, and what messages share on their way.

A file is JSON, read with a typed schema; docs/foresight.md shows one. Only `nodes`, `ranks_per_node` and `links` must
be there.
"""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from collectives.errors import TableError
from collectives.tables.strict import no_twins
from collectives.tables.table import Amount, LinkCost, Ranks

SCHEMA = 1
MOST_RANKS = 1 << 20
LONGEST_FILE = 1 << 20  # bytes
SHARED_MEMORY, MPI = "shared-memory", "mpi"  # classes of links: within a node, between nodes
MIB = 1 << 20

Factor = Annotated[float, msgspec.Meta(gt=0)]


class Interface(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node's: all its ranks' messages to other nodes share it, each way by itself."""

    beta_us_per_MiB: Amount  # noqa: N815 - the file's own spelling of the unit


class Level(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A level of a fat tree: so many nodes are under one switch.

    Their up-links together carry what their interfaces do, divided by the oversubscription, each way.
    """

    nodes: Ranks
    oversubscription: Factor = 1.0
    alpha_us: Amount = 0.0  # for a message that leaves the switch upwards


class Torus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes in a grid that wraps around, numbered with the last dimension running fastest.

    A message goes along one dimension after the other, the shorter way around, over links that are its node's own in
    each direction.
    """

    shape: Annotated[list[Ranks], msgspec.Meta(min_length=1, max_length=8)]
    beta_us_per_MiB: Amount  # noqa: N815
    alpha_us: Amount = 0.0  # a hop


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topology with its costs. `ranks_per_node` is one number, or one for each node."""

    schema: int = SCHEMA
    nodes: Ranks
    ranks_per_node: Ranks | list[Ranks]
    links: list[LinkCost]
    interface: Interface | None = None
    levels: list[Level] = []  # of a fat tree, from the nodes up
    torus: Torus | None = None

    @property
    def sizes(self) -> list[int]:
        """Ranks of each node."""
        each = self.ranks_per_node
        return [each] * self.nodes if isinstance(each, int) else list(each)

    @property
    def ranks(self) -> int:
        return sum(self.sizes)

    @property
    def placed(self) -> list[list[int]]:
        """The ranks of each node, numbered node by node."""
        sizes, first, placed = self.sizes, 0, []
        for size in sizes:
            placed.append(list(range(first, first + size)))
            first += size
        return placed

    @property
    def nest(self) -> list[Any]:
        """The ranks of each node, and nodes in groups by the tree's switches, or by the torus' dimensions."""
        found: list[Any] = list(self.placed)
        grid = (
            []
            if self.torus is None
            else [math.prod(self.torus.shape[axis:]) for axis in range(1, len(self.torus.shape))]
        )
        below = 1
        for together in grid[::-1] or [level.nodes for level in self.levels]:
            step = together // below
            if 1 < step < len(found):
                found = [found[i : i + step] for i in range(0, len(found), step)]
                below = together
        return found

    @property
    def shape(self) -> str:
        """2x4 for two nodes of four ranks, 3+1 for uneven ones."""
        sizes = self.sizes
        return f"{len(sizes)}x{sizes[0]}" if len(set(sizes)) == 1 else "+".join(map(str, sizes))

    def link(self, name: str, nbytes: int) -> LinkCost:
        """What the class costs in a collective on so many bytes; a class that is not there costs what its kind does."""
        known = [each for each in self.links if each.class_ == name]
        if not known:
            return self.link(SHARED_MEMORY, nbytes)
        return next((each for each in known if each.up_to_bytes is None or nbytes <= each.up_to_bytes), known[-1])

    def resized(self, nodes: int, ranks_per_node: int) -> "Network":
        """The same links on other nodes. ValueError where the network has another shape."""
        return replace(self, nodes=nodes, ranks_per_node=ranks_per_node).check("the network")

    def check(self, where: object) -> "Network":
        """This network; ValueError names the place in it that is wrong, and the mend."""
        if wrong := self._wrong():
            raise ValueError(f"{where}: {wrong}")
        return self

    def _wrong(self) -> str | None:
        if self.schema != SCHEMA:
            return f"schema is {self.schema}; this treering reads {SCHEMA}"
        if not isinstance(self.ranks_per_node, int) and len(self.ranks_per_node) != self.nodes:
            return f"ranks_per_node has {len(self.ranks_per_node)} entries for {self.nodes} nodes; give one for each"
        each = self.ranks_per_node
        ranks = each * self.nodes if isinstance(each, int) else sum(each)
        if ranks > MOST_RANKS:
            return f"{ranks} ranks; at most {MOST_RANKS} can be simulated"
        return self._wrong_links() or self._wrong_fabric()

    def _wrong_links(self) -> str | None:
        there = [each.class_ for each in self.links]
        needed = [SHARED_MEMORY] * (max(self.sizes) > 1) + [MPI] * (self.nodes > 1)
        for name in needed:
            if name not in there:
                return f"links has no class {name!r}, which links {'nodes' if name == MPI else 'the ranks of a node'}"
        for name in dict.fromkeys(there):
            ends = [each.up_to_bytes for each in self.links if each.class_ == name]
            closed = [end for end in ends if end is not None]
            if ends[-1] is not None or None in ends[:-1] or closed != sorted(set(closed)):
                return f"links of class {name!r}: up_to_bytes must grow from one to the next, and the last has none"
        return None

    def _wrong_fabric(self) -> str | None:
        if self.levels and self.torus:
            return "levels and torus exclude each other; leave one of them out"
        if self.levels and self.interface is None:
            return "levels need an interface, whose rate is that of the up-links at no oversubscription"
        below = 1
        for place, level in enumerate(self.levels):
            if level.nodes <= below or level.nodes % below:
                return f"levels[{place}].nodes is {level.nodes}; it must be a multiple of {below}, what is below"
            below = level.nodes
        if self.torus and math.prod(self.torus.shape) != self.nodes:
            return f"torus.shape {self.torus.shape} has {math.prod(self.torus.shape)} places for {self.nodes} nodes"
        return None


TYPICAL = Network(
    nodes=1,
    ranks_per_node=1,
    links=[
        LinkCost(
            class_=SHARED_MEMORY,
            alpha_us=1.0,
            beta_us_per_MiB=100.0,
            gamma_us_per_MiB=50.0,
            gap_us=0.2,
            half_duplex=True,
        ),
        LinkCost(class_=MPI, alpha_us=3.0, beta_us_per_MiB=84.0, gamma_us_per_MiB=50.0, gap_us=0.5),
    ],
    interface=Interface(beta_us_per_MiB=84.0),
)  # a processor that copies 10 GB/s, and a network of 100 Gbit/s: where nothing was measured


def of_links(links: Sequence[LinkCost], nodes: Sequence[Sequence[int]]) -> Network:
    """A network of measured links, as a table has them; what is lacking is typical. `nodes`: the ranks of each."""
    there = {each.class_ for each in links}
    lacking = [each for each in TYPICAL.links if each.class_ not in there]
    outside = next((each for each in reversed(links) if each.class_ == MPI), None)
    shared = Interface(beta_us_per_MiB=outside.beta_us_per_MiB) if outside else TYPICAL.interface
    return Network(
        nodes=len(nodes), ranks_per_node=[len(node) for node in nodes], links=[*links, *lacking], interface=shared
    )


def load(path: str | os.PathLike[str]) -> Network:
    """Reads a network's file. ValueError names the file, the place in it and the mend; nothing else is raised."""
    path = Path(path)
    try:
        if not path.is_file():
            raise ValueError(f"{path}: not a file; name a network's, a JSON file")
        if path.stat().st_size > LONGEST_FILE:
            raise ValueError(f"{path}: has {path.stat().st_size} bytes; a network's file has at most {LONGEST_FILE}")
        text = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; name a file that can be read") from error
    return parse(text, path)


def parse(text: bytes, path: object = "the network") -> Network:
    """A network from its JSON text; `path` names it in errors."""
    try:
        no_twins(text, path)
        network: Any = msgspec.json.decode(text, type=Network)
    except TableError as error:
        raise ValueError(str(error)) from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: line {error.lineno}: not JSON: {error.msg}; correct it, or name another") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}; correct it, or name another") from error
    return network.check(path)  # type: ignore[no-any-return]
