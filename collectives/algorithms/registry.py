"""What is registered is verified, drawn, tuned and run. Restrictions and parameters are data."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from inspect import cleandoc
from re import fullmatch
from typing import Any, Protocol

from collectives import nest
from collectives.contract import COLLECTIVES, ROOTED
from collectives.nest import Nest
from collectives.schedule import WHOLE, Group, Phase, Schedule, Span, collect, lane


@dataclass(frozen=True)
class Parameter:
    """What a caller may set and a tuner may try. A number may be any positive one; all else is among the choices."""

    name: str
    choices: tuple[Any, ...]  # first the simplest
    default: Any
    doc: str = ""
    least: int = 1  # of numbers
    form: str = ""  # of words that are allowed too, as a regular expression

    def allows(self, value: object) -> bool:
        if type(value) is str and self.form and fullmatch(self.form, value):
            return True
        if type(value) is int:
            return value >= self.least and any(type(choice) is int for choice in self.choices)
        return any(type(value) is type(choice) and value == choice for choice in self.choices)

    def __str__(self) -> str:
        more = " or another positive number" if self.least == 1 else f" or another number from {self.least} on"
        more = more * any(type(choice) is int for choice in self.choices) + f" or {self.form}" * bool(self.form)
        return f"{self.name}: {', '.join(map(str, self.choices))}{more}"


SEGMENT_BYTES = Parameter(
    "segment_bytes", (None, 1 << 14, 1 << 16, 1 << 18, 1 << 20), None, "of one segment; None: no pipeline"
)
KERNEL_BYTES = "kernel_bytes"  # the piece of a node kernel, where all ranks share a node and there is no pipeline
SLOTS = Parameter("slots", (2, 3, 4, 8), 2, "how many segments of a pipeline are under way at once")
LOWERED = (SEGMENT_BYTES.name, SLOTS.name, KERNEL_BYTES)  # what does not change an algorithm's rounds


class Placed(Protocol):
    """What an algorithm may see of a communicator's topology."""

    @property
    def nodes(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def nest(self) -> tuple[Any, ...]: ...


@dataclass(frozen=True)
class Algorithm:
    """One way to do a collective: how to emit it, what may be set, and, as data, what it cannot serve."""

    collective: str
    name: str  # what `algorithm=` takes
    emit: Callable[..., Iterator[Any]]  # (group, span, **parameters): rounds, or phases
    parameters: tuple[Parameter, ...] = ()
    cells: Callable[[Group, Span], Sequence[Span]] | None = None  # of a pipeline; None: emit makes its own, if any
    even: bool = False  # serves only even numbers of ranks
    power_of_two: bool = False  # serves only powers of two
    forwards: bool = False  # alltoall: passes on what others send each other, so all counts must be known to all
    needs_nodes: bool = False  # takes the ranks of each node
    nested: bool = False  # takes them as groups of groups: sockets, nodes, racks
    regular: bool = False  # serves only groups of one size at each level
    symmetric: bool = False  # made for symmetric memory of one node; elsewhere another is better

    @property
    def pipelined(self) -> bool:
        """Whether it takes `segment_bytes` and `slots`."""
        return any(parameter.name == SEGMENT_BYTES.name for parameter in self.parameters)

    @property
    def own(self) -> tuple[Parameter, ...]:
        """The parameters that make its rounds: what `emit` takes."""
        return tuple(parameter for parameter in self.parameters if parameter.name not in LOWERED)

    @property
    def doc(self) -> str:
        """Idea, cost, restrictions and paper."""
        return cleandoc(self.emit.__doc__ or "")

    @property
    def cost(self) -> str:
        """In alpha (a message), beta (its length n) and gamma (folding n), for p ranks."""
        _, _, cost = self.doc.partition("Cost: ")
        return " ".join(cost.partition("\nServes: ")[0].split())

    def groups(self, topology: Placed) -> Nest:
        """What it takes as nodes, of a communicator's topology."""
        return topology.nest if self.nested else topology.nodes

    def refusal(self, ranks: int, nodes: Nest | None = None, counted: bool = False) -> str | None:
        """Why it cannot serve so many ranks on such nodes, and what would; None if it can.

        counted: each rank knows only how many elements it sends and receives itself.
        """
        if not (lack := self.lack(ranks, nodes, counted)):
            return None
        others = ", ".join(a.name for a in every(self.collective) if not a.lack(ranks, nodes, counted)) or "no other"
        return f"{self.collective} {self.name} needs {lack}; {others} would serve"

    def lack(self, ranks: int, nodes: Nest | None = None, counted: bool = False) -> str | None:
        """What it would need, and has not got."""
        if self.forwards and counted:
            return "messages of one length, since it passes on what others send, and so no send_counts"
        nodes = nodes or [range(ranks)]
        if self.needs_nodes and not len(placed := nest.ranks(nodes)) == len(set(placed)) == ranks:
            return f"nodes that hold each of the {ranks} ranks once, not {nest.innermost(nodes)}"
        if self.nested and not nest.as_deep_everywhere(nodes):
            return f"groups of as many levels everywhere, not {nodes}"
        if self.regular and any(len(set(map(len, level))) > 1 for level in nest.levels(nest.pruned(nodes))):
            return f"groups of one size at each level, not {nest.name(nest.pruned(nodes))}"
        if self.power_of_two and ranks.bit_count() > 1:
            return f"a power of two of ranks, not {ranks}"
        return f"an even number of ranks, not {ranks}" if self.even and ranks > 1 and ranks % 2 else None

    def check(self, **params: Any) -> dict[str, Any]:
        """All parameters, defaults filled in. ValueError for one that does not exist or a value that is not allowed."""
        known = {parameter.name: parameter for parameter in self.parameters}
        for name, value in params.items():
            if name not in known:
                allowed = ", ".join(known) or "none"
                raise ValueError(f"{self.collective} {self.name} has no parameter {name!r}; it has: {allowed}")
            if not known[name].allows(value):
                raise ValueError(f"{self.collective} {self.name}: {name}={value!r} is not allowed; {known[name]}")
        return {name: params.get(name, parameter.default) for name, parameter in known.items()}

    def schedule(
        self, ranks: Iterable[int], me: int, *, nodes: Nest | None = None, root: int = 0, **params: Any
    ) -> Schedule:
        """What rank `me` of the group does. `root` is a place in the group.

        nodes: the ranks of each node; or groups of groups, where nodes are in racks, or parted in sockets, and so on.
        To an algorithm that is not nested the innermost groups are the nodes.

        `segment_bytes` decides between plain rounds (None) and a pipeline; how long its segments are, lowering decides.
        """
        settings, group = self.check(**params), Group(ranks, me)
        if refusal := self.refusal(group.size, nodes):
            raise ValueError(refusal)
        if not 0 <= root < group.size:
            raise ValueError(f"root {root} is not one of {group.size} ranks, 0 to {group.size - 1}")
        segmented, slots = settings.pop(SEGMENT_BYTES.name, None) is not None, settings.pop(SLOTS.name, 0)
        settings.pop(KERNEL_BYTES, None)
        if self.collective in ROOTED:
            settings["root"] = root
        if self.needs_nodes:
            groups = nest.pruned(nodes or [group.ranks])
            settings["nodes"] = groups if self.nested else nest.innermost(groups)
        if self.pipelined and self.cells is None:
            settings["slots"] = slots if segmented else 0
        emitted = self.emit(group, WHOLE, **settings)
        if segmented and self.cells is not None:
            return collect([Phase({0: lane(emitted, self.cells(group, WHOLE), slots)})])
        return collect(emitted)

    def schedules(self, ranks: int, *, nodes: Nest | None = None, root: int = 0, **params: Any) -> list[Schedule]:
        """What each of the ranks does, 0 to `ranks` - 1."""
        return [self.schedule(range(ranks), me, nodes=nodes, root=root, **params) for me in range(ranks)]


_registry: dict[tuple[str, str], Algorithm] = {}


def register(algorithm: Algorithm) -> Algorithm:
    """Takes an algorithm in: from here on it is verified, tuned and run like all others."""
    if algorithm.collective not in COLLECTIVES:
        raise ValueError(f"no collective is called {algorithm.collective!r}; there are {', '.join(COLLECTIVES)}")
    if (algorithm.collective, algorithm.name) in _registry:
        raise ValueError(f"{algorithm.collective} {algorithm.name} is registered already")
    _registry[algorithm.collective, algorithm.name] = algorithm
    return algorithm


@cache
def load() -> None:
    """Takes in what other distributions declare, once."""
    for point in entry_points(group="treering.algorithms"):
        try:
            point.load()
        except Exception as error:
            owner = point.dist.name if point.dist else "some distribution"
            raise ImportError(f"{owner} declares algorithms in {point.value}, which fails to load: {error}") from error


def every(collective: str | None = None) -> tuple[Algorithm, ...]:
    """All algorithms, or those of one collective."""
    load()
    return tuple(a for a in _registry.values() if collective in (None, a.collective))


def names(collective: str) -> tuple[str, ...]:
    """What `algorithm=` takes."""
    if collective not in COLLECTIVES:
        raise ValueError(f"no collective is called {collective!r}; there are {', '.join(COLLECTIVES)}")
    return tuple(a.name for a in every(collective))


def find(collective: str, name: str) -> Algorithm:
    """The algorithm of that name; ValueError lists the names that there are."""
    load()
    found = _registry.get((collective, name))
    if found is None:
        raise ValueError(f"{collective} has no algorithm called {name!r}; it has: {', '.join(names(collective))}")
    return found
