"""Tuning tables: their typed schema, what makes one wrong, and their files.

A table holds rules for one topology. A rule names a collective, a dtype and an operation (each exactly, by class, or
"any"), a kind of storage, and an interval of message sizes, both ends included. For each (collective, dtype, op,
storage) that has rules, they cover every size from 0 up, each size once. The most exact key that matches decides.
"""

import hashlib
import json
import math
import os
import stat
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Annotated

import msgspec

from collectives.errors import TableError
from collectives.tables.advice import BucketAdvice, Name
from collectives.tables.advice import Value as Value
from collectives.tables.conditions import Conditions
from collectives.tables.conditions import wrong as wrong_conditions
from collectives.tables.strict import MEND, no_twins

SCHEMA = 1
LONGEST_FILE = 64 << 20  # bytes; a table has some kilobytes, and no device or log should be read as one

COLLECTIVES = ("allreduce", "reduce", "broadcast", "reduce_scatter", "allgather", "gather", "scatter", "alltoall")
DTYPE_CLASSES = {
    "half": ("float16", "bfloat16"),
    "float": ("float32", "float64"),
    "integer": ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
}
OP_CLASSES = {"arithmetic": ("sum", "avg", "prod", "min", "max"), "bitwise": ("and", "or", "xor")}
DTYPE_CLASS = {name: kind for kind, names in DTYPE_CLASSES.items() for name in names}
OP_CLASS = {name: kind for kind, names in OP_CLASSES.items() for name in names}
ANY = "any"
ORDINARY, SYMMETRIC = STORAGES = ("ordinary", "symmetric")
GPU = "gpu"  # memory of a GPU, whose rules name what serves there (docs/cuda.md), for the table's device

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Ranks = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
Amount = Annotated[float, msgspec.Meta(ge=0)]


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The topology that a table was measured on. `nodes` is their number."""

    nodes: Ranks
    ranks_per_node: list[Ranks]
    links: list[str] = []
    cpu: str = ""
    mpi: str = ""
    network: str = ""
    device: str | None = None
    fingerprint: Name


Bounds = tuple[Amount, Amount]  # an interval of 95 %


class LinkCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Measured cost of a class of links, microseconds: a message of n MiB takes alpha + n beta, folding it n gamma.

    Of several of one class, the first whose up_to_bytes the whole collective's message does not pass counts. gap_us:
    between a rank's messages. start_us: of a call, once. half_duplex: a rank's sends and receives share one port, its
    processor. error: how far, as a factor above 1, times that were measured lie from the model's (95 % of them).
    """

    class_: Name = msgspec.field(name="class")
    alpha_us: Amount
    beta_us_per_MiB: Amount  # noqa: N815 - the file's own spelling of the unit
    gamma_us_per_MiB: Amount  # noqa: N815
    gap_us: Amount = 0.0
    start_us: Amount = 0.0
    eager_bytes: Count | None = None  # longer messages wait for their receiver; None: none does
    half_duplex: bool = False
    up_to_bytes: Count | None = None
    alpha_bounds: Bounds | None = None
    beta_bounds: Bounds | None = None
    gamma_bounds: Bounds | None = None
    error: Annotated[float, msgspec.Meta(ge=1)] | None = None

    @property
    def costs(self) -> tuple[float, ...]:
        """Alpha, beta, gamma, gap, start."""
        found = self.alpha_us, self.beta_us_per_MiB, self.gamma_us_per_MiB, self.gap_us, self.start_us
        return tuple(map(float, found))


class RunnerUp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The second best. `over_best`: how many times the best's time it took, by what was compared, with 95 % bounds."""

    algorithm: Name
    params: dict[str, Value] = {}
    median_us: Amount | None = None
    over_best: tuple[Amount, Amount, Amount] | None = None  # low, middle, high


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages of min_bytes to max_bytes (both included; None: no end) are served by `algorithm` with `params`.

    On symmetric storage that is one_pass, or what serves ordinary memory, where the rules for that decide.
    The times are those at `measured_bytes`, a size within the interval: median and its 95 % interval, and what 95 % of
    calls stayed within, microseconds, the largest over ranks.
    """

    collective: Name
    dtype: Name = ANY
    op: Name = ANY
    storage: Name = ORDINARY
    min_bytes: Count
    max_bytes: Count | None
    algorithm: Name
    params: dict[str, Value] = {}
    measured_bytes: Count | None = None
    median_us: Amount | None = None
    low_us: Amount | None = None
    high_us: Amount | None = None
    p95_us: Amount | None = None
    runner_up: RunnerUp | None = None
    native_us: Amount | None = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.collective, self.dtype, self.op, self.storage

    def __str__(self) -> str:
        end = "" if self.max_bytes is None else self.max_bytes
        where = {SYMMETRIC: " of symmetric memory", GPU: " of a GPU's memory"}.get(self.storage, "")
        return f"{self.collective} {self.dtype} {self.op} {self.min_bytes}..{end} bytes{where}"


class Table(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A tuning table; see tuning_tables/README.md for its format. Made by `load` or by the tuner; not changed after."""

    schema: int = SCHEMA
    treering: str = ""
    created: str = ""
    topology: Place
    links: list[LinkCost] = []
    samples: str | None = None
    target: Name | None = None  # the MPI library whose own collectives the rules are for; None: treering's
    tuned: list[Conditions] = []
    rules: list[Rule]
    ddp: list[BucketAdvice] = []

    @property
    def origin(self) -> str:
        return f"table {self.__dict__.get('path') or '(not saved)'}"

    def check(self, where: object = "the table", refusal: Callable[[Rule], str | None] | None = None) -> "Table":
        """This table with its rules sorted; TableError names the rule that is wrong and the mend.

        `refusal(rule)`, where given, says why an algorithm or its parameters cannot serve (the registry knows).
        """
        if self.schema > SCHEMA:
            raise TableError(
                f"{where}: schema {self.schema} is newer than this treering reads ({SCHEMA}); "
                "update treering, or tune again with this version"
            )
        if self.schema < 1:
            raise TableError(f"{where}: schema is {self.schema}, and the first is 1; {MEND}")
        if len(self.topology.ranks_per_node) != self.topology.nodes:
            raise TableError(
                f"{where}: topology.ranks_per_node has {len(self.topology.ranks_per_node)} entries for "
                f"{self.topology.nodes} nodes; give one for each node"
            )
        numbered = sorted(enumerate(self.rules), key=lambda item: (*item[1].key, item[1].min_bytes))
        for index, rule in numbered:
            wrong = _wrong(rule) or (refusal(rule) if refusal else None)
            if wrong:
                raise TableError(f"{where}: rules[{index}] ({rule}): {wrong}")
        for _, same in groupby(numbered, key=lambda item: item[1].key):
            _check_cover(list(same), where)
        self.rules = [rule for _, rule in numbered]
        self._check_advice(where, refusal)
        for said in wrong_conditions(self.tuned):
            raise TableError(f"{where}: {said}; {MEND}")
        return self

    def _check_advice(self, where: object, refusal: Callable[[Rule], str | None] | None) -> None:
        for index, advice in enumerate(self.ddp):
            wrong = f"{found}; {MEND}" if (found := advice.wrong()) else None
            if wrong is None and refusal and advice.chosen.algorithm:
                wrong = refusal(_always(advice.chosen.algorithm, advice.chosen.params))
            if any(other.signature == advice.signature for other in self.ddp[:index]):
                wrong = f"a second advice for signature {advice.signature}; keep one"
            if wrong:
                raise TableError(f"{where}: ddp[{index}] ({advice.model}): {wrong}")

    def advice(self, signature: str) -> BucketAdvice | None:
        """What there is for the model with this signature (integrations.bucket_advice makes them)."""
        return next((each for each in self.ddp if each.signature == signature), None)

    def conditions(self, rule: Rule) -> Conditions | None:
        """What its tuning was asked for, where the table says so."""
        return next((each for each in self.tuned if each.key == rule.key[:3]), None)

    def digest(self) -> str:
        """16 hexadecimal digits of all that this table decides, equal on ranks that hold the same table."""
        decides = [
            (*rule.key, rule.min_bytes, rule.max_bytes, rule.algorithm, sorted(rule.params.items()))
            for rule in self.rules
        ]
        advised = sorted((each.signature, each.best, each.measured) for each in self.ddp)
        costs = [(each.class_, each.up_to_bytes, *each.costs) for each in self.links]
        more = [part for part in (advised, costs) if part]
        text = msgspec.json.encode([self.topology.fingerprint, decides, *more])
        return hashlib.sha256(text).hexdigest()[:16]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes sorted rules, one a line. The file appears whole or not at all, and so survives a crash."""
        path = Path(path)
        self.check(path)
        names = ("schema", "treering", "created", "topology", "links", "samples", "target", "tuned")
        head = {name: getattr(self, name) for name in names}
        lines = [f" {_text(name)}: {_text(value)}" for name, value in head.items()]
        lines.append(' "rules": [\n' + ",\n".join(f"  {_text(rule)}" for rule in self.rules) + "\n ]")
        advice = ",\n".join(f"  {_text(each)}" for each in self.ddp)
        lines.append(f' "ddp": [\n{advice}\n ]' if advice else ' "ddp": []')
        _write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")
        self.__dict__["path"] = str(path)

    def find(self, collective: str, nbytes: int, dtype: str, op: str | None, storage: str = ORDINARY) -> Rule | None:
        """The rule for a call, or None where the table has none for this collective, dtype, operation and storage."""
        starts, rules = self._index[collective, dtype, op, storage]
        return rules[bisect_right(starts, nbytes) - 1] if rules else None

    def serving(self, collective: str, dtype: str, op: str | None, storage: str = ORDINARY) -> list[Rule]:
        """The rules of the most exact key that matches, by size; none where no key does."""
        return self._index[collective, dtype, op, storage][1]

    @cached_property
    def _index(self) -> "Index":
        return Index(self.rules)


class Index(dict[tuple[str, str, str | None, str], tuple[list[int], list[Rule]]]):
    """By collective, dtype, operation and storage: where the rules that serve begin, and these; found when asked."""

    def __init__(self, rules: Iterable[Rule]):
        self._by_key: dict[tuple[str, str, str, str], list[Rule]] = {}
        for rule in sorted(rules, key=lambda rule: rule.min_bytes):
            self._by_key.setdefault(rule.key, []).append(rule)

    def __missing__(self, kind: tuple[str, str, str | None, str]) -> tuple[list[int], list[Rule]]:
        collective, dtype, op, storage = kind
        keys = ((collective, d, o, storage) for d in _wider(dtype, DTYPE_CLASS) for o in _wider(op, OP_CLASS))
        rules = next((self._by_key[key] for key in keys if key in self._by_key), [])
        self[kind] = [rule.min_bytes for rule in rules], rules
        return self[kind]


def _always(algorithm: str, params: dict[str, Value]) -> Rule:
    """The rule by which an allreduce of any size is served so."""
    return Rule(collective="allreduce", min_bytes=0, max_bytes=None, algorithm=algorithm, params=params)


def _wider(name: str | None, classes: Mapping[str, str]) -> Iterator[str]:
    """A dtype's or operation's own name, its class, "any"."""
    if name is not None:
        yield name
        if name in classes:
            yield classes[name]
    yield ANY


def _wrong(rule: Rule) -> str | None:
    """What is wrong with one rule by itself."""
    allowed: tuple[tuple[str, str, Iterable[str]], ...] = (
        ("collective", rule.collective, COLLECTIVES),
        ("dtype", rule.dtype, (*DTYPE_CLASS, *DTYPE_CLASSES, ANY)),
        ("op", rule.op, (*OP_CLASS, *OP_CLASSES, ANY)),
        ("storage", rule.storage, (*STORAGES, GPU)),
    )
    for field, value, names in allowed:
        if value not in names:
            return f"{field} is {value!r}; use one of {', '.join(names)}"
    if rule.max_bytes is not None and rule.max_bytes < rule.min_bytes:
        return f"max_bytes {rule.max_bytes} is below min_bytes {rule.min_bytes}; {MEND}"
    for field in ("median_us", "low_us", "high_us", "p95_us", "native_us"):
        time: float | None = getattr(rule, field)
        if time is not None and not (math.isfinite(time) and time >= 0):
            return f"{field} is {time}; a time is a finite number of microseconds"
    low, median, high = rule.low_us, rule.median_us, rule.high_us
    if low is not None and median is not None and high is not None and not low <= median <= high:
        return f"its interval {low} to {high} does not hold its median {median}; {MEND}"
    over = rule.runner_up.over_best if rule.runner_up else None
    if over and not (over[0] <= over[1] <= over[2] < math.inf):
        return f"runner_up.over_best {list(over)} is not low, middle and high, or not finite; {MEND}"
    for name, given in rule.params.items():
        if isinstance(given, float) and not math.isfinite(given):
            return f"parameter {name} is {given}; {MEND}"
    return None


def _check_cover(rules: list[tuple[int, Rule]], where: object) -> None:
    """Rules of one key, by size, cover 0 and up, each size once."""
    expected = 0
    for number, (index, rule) in enumerate(rules):
        place = f"{where}: rules[{index}] ({rule})"
        before = f"rules[{rules[number - 1][0]}]" if number else "the first rule"
        if rule.min_bytes > expected:
            mend = f"start it at {expected}" if number else "start it at 0"
            raise TableError(f"{place}: no rule serves {expected} to {rule.min_bytes - 1} bytes; {mend}")
        if rule.min_bytes < expected:
            raise TableError(f"{place}: overlaps {before}; start it at {expected}, or remove one of the two")
        if rule.max_bytes is None:
            if number + 1 < len(rules):
                index, rule = rules[number + 1]
                raise TableError(
                    f"{where}: rules[{index}] ({rule}): overlaps rules[{rules[number][0]}], which has no end; "
                    f"end that one below {rule.min_bytes}, or remove one of the two"
                )
            return
        expected = rule.max_bytes + 1
    index, rule = rules[-1]
    raise TableError(
        f"{where}: rules[{index}] ({rule}): no rule serves {expected} bytes and more; set its max_bytes to null"
    )


# Files


def load(path: str | os.PathLike[str]) -> Table:
    """Reads a tuning table. TableError names the file, the line or rule, and the mend; nothing else is raised."""
    path = Path(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise TableError(f"{path}: is {kind}; name a table, a JSON file that `treering tune` wrote")
        if status.st_size > LONGEST_FILE:
            raise TableError(f"{path}: has {status.st_size} bytes; a table has at most {LONGEST_FILE}")
        text = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TableError(
            f"{path}: {reason}; name a table that exists and can be read, or make one: treering tune"
        ) from error
    return parse(text, path)


def parse(text: bytes, path: str | os.PathLike[str] = "the table") -> Table:
    """A table from its JSON text; `path` names it in errors."""
    try:
        no_twins(text, path)
        table = msgspec.json.decode(text, type=Table)
    except msgspec.ValidationError as error:
        newer = _newer_schema(text)
        told = f"schema {newer} is newer than this treering reads ({SCHEMA}); update treering"
        raise TableError(f"{path}: {told if newer else f'{error}; {MEND}'}") from error
    except msgspec.DecodeError as error:  # what JSON's own reader took: half of a character that is written as two
        number = text.count(b"\n", 0, max(0, text.lower().find(b"\\ud"))) + 1
        raise TableError(f"{path}: line {number}: not UTF-8: an escape of half a character; {MEND}") from error
    except (ValueError, RecursionError) as error:
        line = f"line {error.lineno}: " if isinstance(error, json.JSONDecodeError) else ""
        said = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise TableError(f"{path}: {line}not JSON: {said}; {MEND}") from error
    table.check(path)
    table.__dict__["path"] = os.fspath(path)
    return table


def _newer_schema(text: bytes) -> int | None:
    raw = json.loads(text)
    schema = raw.get("schema") if isinstance(raw, dict) else None
    return schema if isinstance(schema, int) and schema > SCHEMA else None


def _text(value: object) -> str:
    """JSON on one line, with a space after commas and colons."""
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False)


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise TableError(f"{path}: cannot be written: {error.strerror}; name another file or free space") from error
