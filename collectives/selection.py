"""Which algorithm serves a call: the tuning table's rule, or the rule of thumb where no table applies."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from collectives.sizes import parse_size
from collectives.tables import choice as said
from collectives.tables.choice import NATIVE, Choice, Sentence, Topology, difference
from collectives.tables.kinship import kinship
from collectives.tables.table import COLLECTIVES, ORDINARY, SYMMETRIC, Rule, Table, Value, load, parse

__all__ = ["NATIVE", "Choice", "Table", "choose", "default", "difference", "load", "parse", "parse_overrides"]

ONE_PASS = "one_pass"  # over symmetric memory of one node
FIXED_ORDER = {
    "allreduce": ("one_shot", "two_shot", "single_copy", "linear", "weighted", ONE_PASS),
    "reduce_scatter": ("direct", ONE_PASS),
    "reduce": ("direct", "two_shot", ONE_PASS),
}
# Algorithms that fold all ranks in order, once, wherever they run.
PASSES = ("allreduce", "reduce_scatter", "allgather", "broadcast", "reduce")  # what one_pass does
LEAST_PASS = 4 << 10  # bytes of symmetric memory from which one_pass serves where no rule says so
NO_TABLE = "no tuning table"

Proof = Callable[[str, str, Mapping[str, Value]], bool]  # that a collective's algorithm with parameters folds in order


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
    kin = kinship(table, topology) if table is not None else None
    if storage == SYMMETRIC:
        first = _on_symmetric(table, kin, topology, collective, nbytes, dtype, op)
        if first is not None:
            return first
    because: Sentence | str = NO_TABLE
    if table is not None and kin is not None:
        rule = table.find(collective, nbytes, dtype, op)
        if rule is None:
            because = Sentence(said.no_rule, (table, collective, dtype, op))
        elif _may(collective, rule.algorithm, rule.params, allow_native, deterministic, proof):
            return _of_rule(table, kin, topology, rule)
        else:
            second = rule.runner_up
            if second and _may(collective, second.algorithm, second.params, allow_native, deterministic, proof):
                why = Sentence(said.of_runner_up, (table, topology, rule, deterministic))
                return Choice(second.algorithm, second.params, rule, None, kin, table, why)
            because = Sentence(said.not_allowed, (table, rule))
    elif table is not None:
        because = Sentence(said.not_used, (table, topology))
    return default(topology, collective, nbytes, deterministic=deterministic, because=because)


def _may(
    collective: str,
    algorithm: str,
    params: Mapping[str, Value],
    allow_native: bool,
    deterministic: bool,
    proof: Proof | None,
) -> bool:
    """Whether a call may be served so."""
    if algorithm == NATIVE:
        return allow_native and not deterministic
    if not deterministic or algorithm in FIXED_ORDER.get(collective, (algorithm,)):
        return True
    return proof is not None and proof(collective, algorithm, params)


def _of_rule(table: Table, kin: str, topology: Topology, rule: Rule) -> Choice:
    why = Sentence(said.of_rule, (table, topology, rule))
    return Choice(rule.algorithm, rule.params, rule, rule.runner_up, kin, table, why)


def _on_symmetric(
    table: Table | None, kin: str | None, topology: Topology, collective: str, nbytes: int, dtype: str, op: str | None
) -> Choice | None:
    """one_pass, by the table's rule or by thumb; None where what serves ordinary memory is to serve here too."""
    if len(topology.nodes) > 1 or len(topology.nodes[0]) == 1 or collective not in PASSES:
        return None
    because = NO_TABLE
    if table is not None and kin is not None:
        rule = table.find(collective, nbytes, dtype, op, SYMMETRIC)
        if rule is not None:
            return _of_rule(table, kin, topology, rule) if rule.algorithm == ONE_PASS else None
        because = f"{table.origin} has no rule"
    if nbytes < LEAST_PASS:
        return None
    why = "each rank reads and writes the others' memory, once"
    return _thumb(f"{because} for symmetric memory", ONE_PASS, {}, why)


def default(
    topology: Topology, collective: str, nbytes: int, *, deterministic: bool = False, because: Sentence | str = ""
) -> Choice:
    """The rule of thumb: few messages where latency counts, few bytes and a pipeline where the network does."""
    nodes, ranks = len(topology.nodes), sum(map(len, topology.nodes))
    if nodes == 1:
        return _thumb(because, *_on_a_node(collective, ranks, nbytes))
    if deterministic and collective in FIXED_ORDER:
        few = collective == "allreduce" and nbytes <= 16 << 10
        name = "one_shot" if few else "two_shot" if collective == "allreduce" else "direct"
        return _thumb(because, name, {}, "it folds all ranks in order")
    return _thumb(because, *_between_nodes(collective, nodes, ranks, nbytes))


def _thumb(because: Sentence | str, name: str, params: dict[str, Value], why: str) -> Choice:
    return Choice(name, params, why=Sentence(said.by_default, (because, name, why)))


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
