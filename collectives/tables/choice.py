"""What serves a call, and why: what was found is kept as it is, and put into words when somebody asks."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from collectives.tables.kinship import EXACT
from collectives.tables.table import Place, Rule, RunnerUp, Table, Value

NATIVE = "native"  # the MPI library's own collective, as an algorithm's name


class Topology(Protocol):
    """What selection needs of a communicator's topology (collectives.topology has the whole of it)."""

    @property
    def nodes(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def ranks_per_node(self) -> tuple[int, ...]: ...
    @property
    def fingerprint(self) -> str: ...


class Sentence(msgspec.Struct, frozen=True):
    """Words for a person, made when somebody reads them: few choices are ever asked why."""

    say: Callable[..., str]
    about: tuple[Any, ...]

    def __str__(self) -> str:
        return self.say(*self.about)


class Choice(msgspec.Struct, frozen=True):
    """What serves a call, and why.

    `rule` is the table's, and `runner_up` what its algorithm was preferred to. `basis` is "exact" where the table was
    measured on this topology, "near" where it was on one of the nearest, "model" where only the costs of its links say
    something, "" where there is no table. `origin` is read from `source`, and `reason` from `why`.
    """

    algorithm: str
    params: Mapping[str, Value]
    rule: Rule | None = None
    runner_up: RunnerUp | None = None
    basis: str = ""
    source: Table | str = "default"
    why: Sentence | str = ""

    @property
    def origin(self) -> str:
        """One of "table FILE", "links of table FILE", "default", "argument", "environment"."""
        return self.source if isinstance(self.source, str) else self.source.origin

    @property
    def reason(self) -> str:
        """A sentence for a person."""
        return str(self.why)

    @property
    def margin(self) -> float | None:
        """How much longer the runner-up took on this topology, as a fraction of this choice's time."""
        rule, second = self.rule, self.runner_up
        if self.basis != EXACT or rule is None or second is None or second.median_us is None or not rule.median_us:
            return None
        return (second.over_best[1] if second.over_best else second.median_us / rule.median_us) - 1

    @property
    def margin_bounds(self) -> tuple[float, float] | None:
        """The margin's interval of 95 %, where the table has one."""
        if self.margin is None or self.runner_up is None or self.runner_up.over_best is None:
            return None
        low, _, high = self.runner_up.over_best
        return low - 1, high - 1

    def with_params(self, more: Mapping[str, Value]) -> "Choice":
        """The same with parameters of the call's own."""
        return replace(self, params={**self.params, **more})

    def adding(self, more: str) -> "Choice":
        """The same with more to its reason."""
        return replace(self, why=Sentence("{}; {}".format, (self.why, more)))


# The sentences


def of_rule(table: Table, topology: Topology, rule: Rule) -> str:
    """Why a rule's own algorithm serves."""
    text, second = f"the rule for {rule}", rule.runner_up
    if second and second.median_us is not None and rule.median_us:
        at = f" at {rule.measured_bytes} bytes" if rule.measured_bytes is not None else ""
        text += f": {rule.median_us:.4g} us{at}, runner-up {second.algorithm} {second.median_us:.4g} us"
        over = second.over_best[1] if second.over_best else second.median_us / rule.median_us
        text += ", which is not faster beyond the noise" if over < 1 else ""
    if rule.algorithm == NATIVE:
        text += "; the MPI library's own collective keeps none of treering's promises (deadline, agreement, NaN)"
    return _within(table, topology, rule, text)


def of_runner_up(table: Table, topology: Topology, rule: Rule, deterministic: bool) -> str:
    """Why a rule's runner-up serves instead."""
    why = "the order of the sum is fixed" if deterministic else "the MPI library's own collective is not allowed"
    text = f"the runner-up of the rule for {rule}, whose {rule.algorithm} may not serve: {why}"
    return _within(table, topology, rule, text)


def by_default(because: object, algorithm: str, why: str) -> str:
    return f"{f'{because}; ' if because else ''}by default {algorithm}: {why}"


def no_rule(table: Table, collective: str, dtype: str, op: str | None) -> str:
    return f"{table.origin} has no rule for {collective} of {dtype}{f' with {op}' if op else ''}"


def not_allowed(table: Table, rule: Rule) -> str:
    return f"{table.origin} has only {rule.algorithm} here, which this call may not take"


def not_used(table: Table, topology: Topology) -> str:
    return f"{table.origin} is not used: {difference(table.topology, topology)}"


def _within(table: Table, topology: Topology, rule: Rule, text: str) -> str:
    """A reason that comes from a rule, with where that was measured, unless it was here, and what was asked for."""
    if table.topology.fingerprint != topology.fingerprint:
        text = f"the nearest topology that was measured ({difference(table.topology, topology)}); {text}"
    conditions = str(table.conditions(rule) or "")
    return f"{text}; {conditions}" if conditions else text


def difference(place: Place, topology: Topology) -> str:
    """How a table's topology differs from the one at hand, for a person."""
    sizes = tuple(len(node) for node in topology.nodes)
    if tuple(place.ranks_per_node) != sizes:
        return f"it is for {_shape(place.ranks_per_node)}, and this is {_shape(sizes)}"
    for field in ("links", "cpu", "mpi", "network", "device"):
        there, here = getattr(place, field), getattr(topology, field, None)
        if here is not None and (list(there) != list(here) if field == "links" else there != here):
            return f"it was measured with {field} {there}, and this is {here}"
    return f"its fingerprint is {place.fingerprint}, and this topology's is {topology.fingerprint}"


def _shape(ranks_per_node: Iterable[int]) -> str:
    sizes = list(ranks_per_node)
    nodes = "1 node" if len(sizes) == 1 else f"{len(sizes)} nodes"
    each = sizes[0] if len(set(sizes)) == 1 else "+".join(map(str, sizes))
    return f"{nodes} of {each} ranks"
