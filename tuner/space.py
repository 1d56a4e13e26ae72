"""What a tuner may try: the registry's algorithms and parameters, less what cannot help at a size or on a topology."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, TypeAlias

from collectives import nest
from collectives.algorithms import KERNEL_BYTES, SEGMENT_BYTES, SLOTS, Algorithm, every, find
from collectives.nest import Nest
from collectives.proof.canonical import canonical
from collectives.schedule import WHOLE, Group
from collectives.selection import NATIVE
from collectives.tables.table import Value

Nodes = Sequence[Sequence[int]]
Choices: TypeAlias = tuple[tuple[str, tuple[Value, ...]], ...]  # of each parameter, first the default


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


COMPARED_RANKS = 16  # up to which schedules are compared
SMALLEST_PIECE = 1 << 14  # bytes of a chunk up to which a node kernel's piece is not varied
BASELINE = Candidate(NATIVE)


class Chooser(Protocol):
    """What asking needs of an Optuna trial."""

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any: ...


@dataclass(frozen=True)
class Branch:
    """One algorithm, the values to try of each of its parameters, and, for a pipeline, of slots by segment_bytes."""

    algorithm: str
    choices: Choices
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

    def typical(self) -> list[Candidate]:
        """Each algorithm plain and, where it can be, in the middle one of its pipelines."""
        every, chosen = self.every(), list[Candidate]()
        for plain in self.simplest():
            cut = [each for each in every if each.algorithm == plain.algorithm and SEGMENT_BYTES.name in each.params]
            chosen += [plain, cut[len(cut) // 2]] if cut else [plain]
        return chosen

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
    collective: str,
    nodes: Nodes,
    nbytes: int,
    *,
    groups: Nest | None = None,
    only: Sequence[str] | None = None,
    deterministic: bool = False,
) -> Space:
    """What may serve `nbytes` on these nodes. `only` names the algorithms to try; ValueError if one cannot serve.

    groups: the same ranks in groups of groups, where there are levels beside that of the nodes.

    Left out: algorithms whose restrictions the ranks do not meet, and those for symmetric memory; what emits the same
    schedules here as an earlier candidate, which on few ranks is often so; hierarchies where every node, or the only
    one, makes them an algorithm that is tried already; segments that do not cut a cell of the pipeline; more slots than
    segments. deterministic: and what does not fold all ranks in order, once, by the proof of its schedules.
    """
    ranks = sum(len(node) for node in nodes)
    branches = []
    for algorithm in [find(collective, name) for name in only] if only else every(collective):
        here = groups if algorithm.nested and groups else nodes
        refusal = algorithm.refusal(ranks, here)
        if only and refusal:
            raise ValueError(refusal)
        unfit = (algorithm.needs_nodes and flat(here)) or algorithm.symmetric
        if refusal or (unfit and not only) or (deterministic and here is not nodes):
            continue
        branch: Branch | None = _branch(algorithm, ranks, nbytes)
        if branch and deterministic:
            branch = _in_order(branch, collective, placed(nodes))
        if branch is not None:
            if algorithm.needs_nodes:
                branches.append(replace(branch, choices=_telling(algorithm, branch.choices, nest.pruned(here))))
            elif only or needs_kernel(algorithm):
                branches.append(branch)
            else:
                branches += _less(branch, repeats(collective, placed(nodes)))
    if not branches:
        raise ValueError(f"no algorithm of {collective} can serve {ranks} ranks{' in a fixed order' * deterministic}")
    return Space(tuple(branches))


def _in_order(branch: Branch, collective: str, nodes: tuple[tuple[int, ...], ...]) -> Branch | None:
    """The branch without the values of a parameter under which it does not fold in order, whatever the others are."""

    def proved(settings: Iterable[Candidate]) -> bool:
        return all(canonical(collective, each.algorithm, each.params, nodes) for each in settings)

    choices = list(branch.choices)
    for place, (name, values) in enumerate(choices):
        kept = tuple(
            value for value in values
            if proved(replace(branch, choices=(*choices[:place], (name, (value,)), *choices[place + 1:])).every())
        )  # fmt: skip
        if kept:
            choices[place] = name, kept
    narrowed = replace(branch, choices=tuple(choices))
    return narrowed if proved(narrowed.every()) else None


def flat(groups: Nest) -> bool:
    """Whether groups part the ranks at one level at most."""
    return sum(any(len(group) > 1 for group in level) for level in nest.levels(groups)) < 2


def needs_kernel(algorithm: Algorithm) -> bool:
    """Whether a node kernel may serve it, so that it is not only its schedules."""
    return any(parameter.name == KERNEL_BYTES for parameter in algorithm.parameters) or algorithm.name == "one_shot"


def placed(nodes: Nodes) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, nodes))


def _less(branch: Branch, repeated: frozenset[Candidate]) -> list[Branch]:
    """The branch without the values of its only parameter that change nothing; none where it changes nothing itself."""
    if len(branch.choices) > 1:
        return [branch]
    if not branch.choices:
        return [] if Candidate(branch.algorithm) in repeated else [branch]
    ((name, values),) = branch.choices
    kept = tuple(value for value in values if candidate(branch.algorithm, {name: value}) not in repeated)
    return [replace(branch, choices=((name, kept),))] if kept else []


@cache
def repeats(collective: str, nodes: tuple[tuple[int, ...], ...]) -> frozenset[Candidate]:
    """Candidates of at most one parameter that emit the schedules of an earlier one; not looked for on many ranks."""
    ranks, seen, found = sum(map(len, nodes)), set[object](), set[Candidate]()
    for algorithm in every(collective) if ranks <= COMPARED_RANKS else ():
        own = algorithm.own
        if algorithm.needs_nodes or algorithm.symmetric or len(own) > 1 or algorithm.refusal(ranks, nodes):
            continue
        settings: list[dict[str, Any]] = [{own[0].name: x} for x in _default_first(own[0])] if own else [{}]
        for setting in settings:
            rounds = _emitted(algorithm, nodes, setting)
            if rounds in seen:
                found.add(candidate(algorithm.name, setting))
            seen.add(rounds)
    return frozenset(found)


def _emitted(algorithm: Algorithm, groups: Nest, setting: Mapping[str, Any]) -> tuple[Any, ...]:
    """What all ranks do, in which two settings may be alike."""
    return tuple(
        tuple((number, lane.rounds) for number, lane in phase.lanes.items())
        for each in algorithm.schedules(nest.count(groups), nodes=groups, **setting) for phase in each.phases
    )  # fmt: skip


@cache
def _telling(algorithm: Algorithm, choices: Choices, groups: tuple[Any, ...]) -> Choices:
    """Less the values of a hierarchy that emit an earlier one's schedules, whatever the other parameters are."""
    if nest.count(groups) > COMPARED_RANKS:
        return choices
    kept = list(choices)
    for place, (name, values) in enumerate(choices):
        seen: dict[object, Value] = {}
        for value in values:
            one = Branch(algorithm.name, (*kept[:place], (name, (value,)), *kept[place + 1 :]))
            seen.setdefault(tuple(_emitted(algorithm, groups, each.params) for each in one.every()), value)
        kept[place] = name, tuple(seen.values())
    return tuple(kept)


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
