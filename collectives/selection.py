"""Which algorithm serves a call: the tuning table's rule, or the rule of thumb where no table applies."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from collectives.kinship import EXACT, NEAR, kinship
from collectives.sizes import parse_size
from collectives.table import COLLECTIVES, ORDINARY, SYMMETRIC, Place, Rule, RunnerUp, Table, Value, load, parse

__all__ = ["NATIVE", "Choice", "Table", "choose", "default", "difference", "load", "parse", "parse_overrides"]

NATIVE = "native"  # the MPI library's own collective, as an algorithm's name
ONE_PASS = "one_pass"  # over symmetric memory of one node
FIXED_ORDER = {
    "allreduce": ("one_shot", "two_shot", "single_copy", "linear", "weighted", ONE_PASS),
    "reduce_scatter": ("direct", ONE_PASS),
    "reduce": ("direct", "two_shot", ONE_PASS),
}
# Algorithms that fold all ranks in order, once, wherever they run.
PASSES = ("allreduce", "reduce_scatter", "allgather", "broadcast", "reduce")  # what one_pass does
LEAST_PASS = 4 << 10  # bytes of symmetric memory from which one_pass serves where no rule says so


Proof = Callable[[str, str, Mapping[str, Value]], bool]  # that a collective's algorithm with parameters folds in order


class Topology(Protocol):
    """What selection needs of a communicator's topology (collectives.topology has the whole of it)."""

    @property
    def nodes(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def ranks_per_node(self) -> tuple[int, ...]: ...
    @property
    def fingerprint(self) -> str: ...


@dataclass(frozen=True)
class Choice:
    """What serves a call, and why.

    `margin` is how much longer the runner-up took, as a fraction of this choice's time, `margin_bounds` its interval of
    95 % where the table has one. `origin` is "table FILE",
    "links of table FILE", "default", "argument" or "environment"; `basis` is "exact" where the table was measured on
    this topology, "near" where it was on one of the nearest, "model" where only the costs of its links say something,
    "" where there is no table; `reason` is a sentence for a person.
    """

    algorithm: str
    params: Mapping[str, Value]
    rule: Rule | None = None
    runner_up: RunnerUp | None = None
    margin: float | None = None
    origin: str = "default"
    reason: str = ""
    basis: str = ""
    margin_bounds: tuple[float, float] | None = None

    @property
    def folds_once(self) -> bool:
        """Whether every result is one fold of all ranks in order, rounded once."""
        return any(self.algorithm in names for names in FIXED_ORDER.values())


def choose(
    table: Table | None,
    topology: Topology,
    collective: str,
    nbytes: int,
    dtype: str,
    op: str | None,
    *,
    allow_native: bool = False,
    deterministic: bool = False,
    storage: str = ORDINARY,
    proof: Proof | None = None,
) -> Choice:
    """What serves a message of nbytes. A table counts where it was measured on the topology, or on one near to it.

    allow_native: a rule may name the MPI library's own collective. deterministic: only algorithms that fold all ranks
    in order, everywhere or, where a proof can be asked, here. Where the rule may not be taken its runner-up is, and the
    default after that.

    Ranks choose alike whatever memory each of them has, so on symmetric memory the question is only whether one_pass
    is tried first: else the choice is that for ordinary memory.
    """
    if storage == SYMMETRIC:
        first = _on_symmetric(table, topology, collective, nbytes, dtype, op)
        if first is not None:
            return first
    because = "no tuning table"
    kin = kinship(table, topology) if table is not None else None
    if table is not None and kin is not None:
        prepared: dict[object, tuple[list[int], list[Choice | str]]] = table.__dict__.setdefault("prepared", {})
        key = topology.fingerprint, collective, dtype, op, allow_native, deterministic
        if key not in prepared:
            rules = table.serving(collective, dtype, op)
            choices = [_from_rule(table, rule, allow_native, deterministic, proof) for rule in rules]
            if kin == NEAR:
                choices = [_as_near(choice, table, topology) for choice in choices]
            none = f"{table.origin} has no rule for {collective} of {dtype}{f' with {op}' if op else ''}"
            prepared[key] = [rule.min_bytes for rule in rules] or [0], choices or [none]
        starts, served = prepared[key]
        choice = served[bisect_right(starts, nbytes) - 1]
        if isinstance(choice, Choice):
            return choice
        because = choice
    elif table is not None:
        because = f"{table.origin} is not used: {difference(table.topology, topology)}"
    return default(topology, collective, nbytes, deterministic=deterministic, because=because)


def _on_symmetric(
    table: Table | None, topology: Topology, collective: str, nbytes: int, dtype: str, op: str | None
) -> Choice | None:
    """one_pass, by the table's rule or by thumb; None where what serves ordinary memory is to serve here too."""
    if len(topology.nodes) > 1 or len(topology.nodes[0]) == 1 or collective not in PASSES:
        return None
    rule, because = None, "no tuning table"
    if table is not None and kinship(table, topology) is not None:
        rule, because = table.find(collective, nbytes, dtype, op, SYMMETRIC), f"{table.origin} has no rule"
    if rule is None:
        why = "each rank reads and writes the others' memory, once"
        return _thumb(f"{because} for symmetric memory", ONE_PASS, {}, why) if nbytes >= LEAST_PASS else None
    assert table is not None
    found = _from_rule(table, rule, False, False)
    return found if isinstance(found, Choice) and found.algorithm == ONE_PASS else None


def _from_rule(
    table: Table, rule: Rule, allow_native: bool, deterministic: bool, proof: Proof | None = None
) -> Choice | str:
    """The rule's choice, or its runner-up where the rule may not serve, or why neither may."""

    def may(algorithm: str, params: Mapping[str, Value]) -> bool:
        if algorithm == NATIVE:
            return allow_native and not deterministic
        in_order = algorithm in FIXED_ORDER.get(rule.collective, (algorithm,))
        return not deterministic or in_order or (proof is not None and proof(rule.collective, algorithm, params))

    second, conditions = rule.runner_up, table.conditions(rule)
    tuned = f"; {conditions}" if conditions and str(conditions) else ""
    if may(rule.algorithm, rule.params):
        margin, bounds = _margin(rule)
        reason = f"the rule for {rule}"
        if second and margin is not None:
            at = f" at {rule.measured_bytes} bytes" if rule.measured_bytes is not None else ""
            reason += f": {rule.median_us:.4g} us{at}, runner-up {second.algorithm} {second.median_us:.4g} us"
            reason += ", which is not faster beyond the noise" if margin < 0 else ""
        if rule.algorithm == NATIVE:
            reason += "; the MPI library's own collective keeps none of treering's promises (deadline, agreement, NaN)"
        return Choice(
            rule.algorithm, rule.params, rule, second, margin, table.origin, reason + tuned, EXACT, margin_bounds=bounds
        )
    if second and may(second.algorithm, second.params):
        why = "the order of the sum is fixed" if deterministic else "the MPI library's own collective is not allowed"
        reason = f"the runner-up of the rule for {rule}, whose {rule.algorithm} may not serve: {why}{tuned}"
        return Choice(second.algorithm, second.params, rule, None, None, table.origin, reason, EXACT)
    return f"{table.origin} has only {rule.algorithm} here, which this call may not take"


def _margin(rule: Rule) -> tuple[float | None, tuple[float, float] | None]:
    """How much longer the runner-up took, and the interval of that."""
    second = rule.runner_up
    if second is None or second.median_us is None or not rule.median_us:
        return None, None
    if second.over_best is None:
        return second.median_us / rule.median_us - 1, None
    low, middle, high = second.over_best
    return middle - 1, (low - 1, high - 1)


def _as_near(choice: Choice | str, table: Table, topology: Topology) -> Choice | str:
    """The choice of a table for a topology near to this one, which says so."""
    if isinstance(choice, str):
        return choice
    reason = f"the nearest topology that was measured ({difference(table.topology, topology)}); {choice.reason}"
    return replace(choice, margin=None, margin_bounds=None, basis=NEAR, reason=reason)


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


def default(
    topology: Topology, collective: str, nbytes: int, *, deterministic: bool = False, because: str = ""
) -> Choice:
    """The rule of thumb: few messages where latency counts, few bytes and a pipeline where the network does."""
    nodes, ranks = len(topology.nodes), sum(len(node) for node in topology.nodes)
    if nodes == 1:
        return _thumb(because, *_on_a_node(collective, ranks, nbytes))
    if deterministic and collective in FIXED_ORDER:
        few = collective == "allreduce" and nbytes <= 16 << 10
        name = "one_shot" if few else "two_shot" if collective == "allreduce" else "direct"
        return _thumb(because, name, {}, "it folds all ranks in order")
    return _thumb(because, *_between_nodes(collective, nodes, ranks, nbytes))


def _thumb(because: str, name: str, params: dict[str, Value], why: str) -> Choice:
    return Choice(name, params, origin="default", reason=f"{because + '; ' if because else ''}by default {name}: {why}")


def _on_a_node(collective: str, ranks: int, nbytes: int) -> tuple[str, dict[str, Value], str]:
    """Node kernels, all of which fold all ranks in order."""
    piece: dict[str, Value] = {"kernel_bytes": 64 << 10} if nbytes > 1 << 20 else {}
    if collective == "allreduce":
        if nbytes <= (64 << 10) // ranks:
            return "one_shot", {}, "one round in shared memory, for a short message"
        return "two_shot", piece, "the fewest bytes through shared memory, and one kernel for all of them"
    if collective in ("gather", "scatter", "alltoall"):
        return "direct", {}, "one round, and nothing is sent twice"
    if collective == "allgather" and ranks == 2 and 1 << 20 <= nbytes < 8 << 20:
        return "single_copy", {}, "one copy, straight from the other's memory"
    if collective == "reduce" and ranks > 4 and nbytes > 64 << 10:
        return "two_shot", piece, "all ranks share the work of folding"
    return "direct", piece, "one round, and one kernel for all of it"


def _between_nodes(collective: str, nodes: int, ranks: int, nbytes: int) -> tuple[str, dict[str, Value], str]:
    pipeline: dict[str, Value] = {"segment_bytes": 64 << 10} if nbytes > 1 << 20 else {}
    small = nbytes <= 64 << 10
    if collective in ("reduce", "broadcast"):
        return "binomial_tree", pipeline, "the fewest rounds"
    if collective == "reduce_scatter":
        return ("direct", {}, "one round") if small else ("ring", {}, "neighbours only, and the fewest bytes")
    if collective == "allgather":
        return ("bruck", {}, "the fewest rounds") if small else ("ring", {}, "neighbours only")
    if collective in ("gather", "scatter"):
        return ("binomial_tree", {}, "the fewest rounds") if small else ("direct", {}, "nothing is sent twice")
    if collective == "alltoall":
        return ("direct", {}, "one round") if small else ("pairwise", {}, "one partner at a time")
    if nbytes <= 16 << 10:
        return "recursive_doubling", {}, "the fewest rounds, for a message of at most 16 KiB"
    segments: dict[str, Value] = {"segment_bytes": 256 << 10, "slots": 4}
    if nodes < ranks:
        if nbytes <= 1 << 20:
            return "hierarchical", {}, "few bytes between nodes"
        return "hierarchical", segments, "few bytes between nodes, and some segments there while others are within"
    if nbytes <= 1 << 20:
        return "halving_doubling", {}, "few rounds and few bytes, for a message of at most 1 MiB"
    if nbytes <= 4 << 20:
        return "ring", {}, "the fewest bytes, for a message above 1 MiB"
    return "ring", segments, "the fewest bytes and a pipeline, for a message above 4 MiB"


# What a user fixes by hand


def parse_overrides(text: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """`allreduce=ring:segment_bytes=65536,slots=2;broadcast=binomial_tree` -> collective: (algorithm, parameters).

    Whole numbers, sizes (64K), true, false and none are read as such; anything else is a string. ValueError says what
    is wrong.
    """
    form = "write COLLECTIVE=ALGORITHM[:NAME=VALUE,...][;...], as in allreduce=ring:segment_bytes=65536,slots=2"
    overrides: dict[str, tuple[str, dict[str, Any]]] = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        collective, equals, rest = (part.strip() for part in entry.partition("="))
        name, colon, listed = (part.strip() for part in rest.partition(":"))
        if not equals or not name or (colon and not listed):
            raise ValueError(f"{entry!r} is not an algorithm; {form}")
        if collective not in COLLECTIVES:
            raise ValueError(f"{collective!r} is not a collective; use one of {', '.join(COLLECTIVES)}")
        if collective in overrides:
            raise ValueError(f"{collective} stands twice in {text!r}; name each collective once")
        params: dict[str, Any] = {}
        for assignment in listed.split(",") if listed else []:
            key, equals, value = (part.strip() for part in assignment.partition("="))
            if not (key and equals and value) or key in params:
                raise ValueError(f"{assignment.strip()!r} in {entry!r} is not a parameter, or stands twice; {form}")
            params[key] = _value(value)
        overrides[collective] = name, params
    return overrides


def _value(text: str) -> Value:
    words: dict[str, Value] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for read in (int, parse_size):
        with suppress(ValueError):
            return read(text)
    return text
