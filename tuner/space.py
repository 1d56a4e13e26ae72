"""What a tuner may try: the registry's algorithms and parameters, less what cannot help at a size or on a topology."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from collectives.algorithms import KERNEL_BYTES, SEGMENT_BYTES, SLOTS, Algorithm, every, find
from collectives.schedule import WHOLE, Group
from collectives.selection import FIXED_ORDER, NATIVE
from collectives.table import Value

Nodes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Candidate:
    """An algorithm with its parameters, as a table's rule names them. `items` are sorted, so equal ones are equal."""

    algorithm: str
    items: tuple[tuple[str, Value], ...] = ()

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.items)

    def __str__(self) -> str:
        return self.algorithm + (f":{','.join(f'{name}={value}' for name, value in self.items)}" if self.items else "")


def candidate(algorithm: str, params: Mapping[str, Value] | None = None) -> Candidate:
    """Without what has no effect: `slots` where there is no pipeline, a node kernel's pieces where there is one."""
    given = dict(params or {})
    if given.get(SEGMENT_BYTES.name) is None:
        given.pop(SEGMENT_BYTES.name, None)
        given.pop(SLOTS.name, None)
    else:
        given.pop(KERNEL_BYTES, None)
    return Candidate(algorithm, tuple(sorted(given.items())))


SMALLEST_PIECE = 1 << 14  # bytes of a chunk up to which a node kernel's piece is not varied
BASELINE = Candidate(NATIVE)


class Chooser(Protocol):
    """What asking needs of an Optuna trial."""

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any: ...


@dataclass(frozen=True)
class Branch:
    """One algorithm, the values to try of each of its parameters, and, for a pipeline, of slots by segment_bytes."""

    algorithm: str
    choices: tuple[tuple[str, tuple[Value, ...]], ...]
    segments: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def every(self) -> Iterator[Candidate]:
        settings: list[dict[str, Value]] = [{}]
        for name, values in self.choices:
            settings = [{**setting, name: value} for setting in settings for value in values]
        for setting in settings:
            yield candidate(self.algorithm, setting)
            for segment, slots in self.segments:
                for count in slots:
                    yield candidate(self.algorithm, {**setting, SEGMENT_BYTES.name: segment, SLOTS.name: count})


@dataclass(frozen=True)
class Space:
    """The candidates for one collective, size and topology; conditional: each algorithm has parameters of its own."""

    branches: tuple[Branch, ...]

    def every(self) -> list[Candidate]:
        return list(dict.fromkeys(each for branch in self.branches for each in branch.every()))

    def simplest(self) -> list[Candidate]:
        """Each algorithm with its parameters' first choices."""
        return [next(branch.every()) for branch in self.branches]

    def suggest(self, trial: Chooser) -> Candidate:
        names = [branch.algorithm for branch in self.branches]
        name = trial.suggest_categorical("algorithm", names)
        branch = self.branches[names.index(name)]
        setting: dict[str, Value] = {
            parameter: trial.suggest_categorical(f"{name}.{parameter}", values) for parameter, values in branch.choices
        }
        if branch.segments:
            slots = dict(branch.segments)
            segment = trial.suggest_categorical(f"{name}.{SEGMENT_BYTES.name}", [None, *slots])
            if segment is not None:
                setting[SEGMENT_BYTES.name] = segment
                setting[SLOTS.name] = trial.suggest_categorical(f"{name}.{segment}.{SLOTS.name}", slots[segment])
        return candidate(name, setting)

    def distributions(self, chosen: Candidate) -> dict[str, Value]:
        """The parameters under which `suggest` gives this candidate: what a study enqueues."""
        branch = next(branch for branch in self.branches if branch.algorithm == chosen.algorithm)
        given, name = chosen.params, chosen.algorithm
        named: dict[str, Value] = {"algorithm": name}
        named |= {f"{name}.{parameter}": given.get(parameter, values[0]) for parameter, values in branch.choices}
        if branch.segments:
            segment = given.get(SEGMENT_BYTES.name)
            named[f"{name}.{SEGMENT_BYTES.name}"] = segment
            if segment is not None:
                named[f"{name}.{segment}.{SLOTS.name}"] = given[SLOTS.name]
        return named


def space(
    collective: str, nodes: Nodes, nbytes: int, *, only: Sequence[str] | None = None, deterministic: bool = False
) -> Space:
    """What may serve `nbytes` on these nodes. `only` names the algorithms to try; ValueError if one cannot serve.

    Left out: algorithms whose restrictions the ranks do not meet, and those for symmetric memory; hierarchies where
    every node, or the only one, makes them an algorithm that is tried already; segments that do not cut a cell of the
    pipeline; more slots than segments.
    """
    ranks = sum(len(node) for node in nodes)
    flat = len(nodes) == 1 or len(nodes) == ranks
    branches = []
    for algorithm in [find(collective, name) for name in only] if only else every(collective):
        refusal = algorithm.refusal(ranks, nodes)
        if only and refusal:
            raise ValueError(refusal)
        fixed = algorithm.name in FIXED_ORDER.get(collective, (algorithm.name,))
        unfit = (algorithm.needs_nodes and flat) or algorithm.symmetric
        if refusal or (unfit and not only) or (deterministic and not fixed):
            continue
        branches.append(_branch(algorithm, ranks, nbytes))
    if not branches:
        raise ValueError(f"no algorithm of {collective} can serve {ranks} ranks{' in a fixed order' * deterministic}")
    return Space(tuple(branches))


def _branch(algorithm: Algorithm, ranks: int, nbytes: int) -> Branch:
    pipeline = (SEGMENT_BYTES.name, SLOTS.name)
    choices = tuple((p.name, _default_first(p)) for p in algorithm.parameters if p.name not in pipeline)
    if nbytes / ranks <= SMALLEST_PIECE:  # a chunk is one piece, whatever its length
        choices = tuple((name, values) for name, values in choices if name != KERNEL_BYTES)
    if not algorithm.pipelined:
        return Branch(algorithm.name, choices)
    known = {parameter.name: parameter for parameter in algorithm.parameters}
    cell = _longest_cell(algorithm, ranks, nbytes)
    segments = []
    for segment in known[SEGMENT_BYTES.name].choices:
        if segment is not None and segment < cell:
            count = math.ceil(cell / segment)
            slots = [slot for slot in known[SLOTS.name].choices if slot <= count]
            segments.append((segment, tuple(slots) or (known[SLOTS.name].choices[0],)))
    return Branch(algorithm.name, choices, tuple(segments))


def _default_first(parameter: Any) -> tuple[Value, ...]:
    return (parameter.default, *(choice for choice in parameter.choices if choice != parameter.default))


def _longest_cell(algorithm: Algorithm, ranks: int, nbytes: int) -> float:
    """Bytes of what a pipeline cuts into segments; an algorithm with lanes of its own cuts at most half a message."""
    if algorithm.cells is None:
        return nbytes / 2
    return max(float((cell.hi - cell.lo) * nbytes) for cell in algorithm.cells(Group(range(ranks), 0), WHOLE))
