"""Tuning tables with something wrong in them: each must be refused with words, or say what it says and nothing else.

    python -m tests.unit.tuning_table_mutants [--count N] [--seed S] [TABLE...]

Mutants of each TABLE, and of one that holds everything a table may: truncated at each byte, put into another order,
exchanged, with values of other types, sizes and none; foreign files, and what is no file. Without --count all of them.
A mutant is read as a communicator reads it. It passes where that is

    an error    TableError, whose message names the file, the place in it, and the mend
    the table   equal to the original, where only the order or the spacing is another
    no secret   a table that holds all that the file says, and nothing that the file does not say beside what keys that
                are left out stand for; every size of every kind of call that it has rules for gets one

Exit status 1 where one does anything else, or takes longer than SECONDS.
"""

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from collectives.errors import TableError
from collectives.settings import refused
from collectives.tables.advice import BucketAdvice, Measured
from collectives.tables.conditions import Conditions, Finding
from collectives.tables.table import SCHEMA, LinkCost, Place, Rule, RunnerUp, Table, load, parse

SECONDS = 30.0
PLACE = re.compile(
    r"line \d|byte \d|position \d|`?\$|rules\[\d|ddp\[\d|tuned\[\d|schema|topology|key '|missing required|"
    r"unknown field|is a directory|not a regular file|name a table that exists|Expected `object`|recursion|"
    r"Exceeds the limit|"
    r"has \d+ bytes"
)
MEND = re.compile(
    r"correct it|tune again|restore|update treering|name a table|remove one|start it at|use one of|set its max_bytes|"
    r"give one for each|a finite number|it has: |is not allowed|allowed are|keep one|at most \d"
)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, 0.5, 1e308, -0.0, "", "x", "0", "\x00", "🚀",
    [], [1], {}, {"a": 1}, [None], [[]], "ring", "any",
)  # fmt: skip
CONSTANTS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 5000, "0x10", "01", "1_000", "+1", ".5", "'x'")


@dataclass(frozen=True)
class Mutant:
    """A file to be read: its text, or what makes something else of its path; `same`: it is the table all the same."""

    kind: str
    text: bytes = b""
    make: Callable[[Path], object] | None = None
    same: bool = False
    refused: bool = False


def everything() -> Table:
    """One of all that a table may hold, and that the registry takes."""
    place = Place(nodes=1, ranks_per_node=[2], links=["shared-memory"], cpu='a "cpu"', mpi="b", fingerprint="1x2 | ü")
    timed: dict[str, Any] = {"measured_bytes": 4096, "median_us": 1.5, "low_us": 1.25, "high_us": 2.0, "native_us": 1.5}
    common: dict[str, Any] = {"collective": "allreduce", "dtype": "float", "op": "arithmetic"}
    second = RunnerUp(
        algorithm="ring", params={"segment_bytes": 65536, "slots": 2}, median_us=2.5, over_best=(1.4, 1.5, 1.75)
    )
    rules = [
        Rule(**common, min_bytes=0, max_bytes=5792, algorithm="one_shot", runner_up=second, **timed),
        Rule(**common, min_bytes=5793, max_bytes=1 << 20, algorithm="two_shot", params={"kernel_bytes": 65536}),
        Rule(**common, min_bytes=(1 << 20) + 1, max_bytes=None, algorithm="ring", params={"segment_bytes": 65536}),
        Rule(**common, storage="symmetric", min_bytes=0, max_bytes=None, algorithm="one_pass"),
        Rule(collective="broadcast", min_bytes=0, max_bytes=None, algorithm="binomial_tree"),
        Rule(collective="allreduce", dtype="half", min_bytes=0, max_bytes=None, algorithm="native"),
    ]
    way = Measured(bucket_cap_mb=None, buckets=[100, 200], median_ms=2.0, low_ms=1.0, high_ms=3.0, over_default=1.0,
                   over_default_low=1.0, over_default_high=1.0)  # fmt: skip
    advice = BucketAdvice(model="m:f", signature="s", best=0, measured=[way])
    finding = Finding(guideline="no longer than of a longer message", bytes=64, ratio=1.2, low=1.1, high=1.3)
    tuned = Conditions(collective="allreduce", dtype="float", op="arithmetic", drift=1.5, findings=[finding])
    link = LinkCost(class_="shared-memory", alpha_us=0.5, beta_us_per_MiB=100.0, gamma_us_per_MiB=20.5, error=1.5)
    return Table(
        treering="0.1.0",
        created="2026",
        topology=place,
        links=[link],
        samples="s.jsonl",
        rules=rules,
        ddp=[advice],
        tuned=[tuned],
    ).check()


def saved(table: Table) -> bytes:
    """The text that a table is saved as."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.json")
        table.save(path)
        return path.read_bytes()


# What is done to a table


def truncated(whole: bytes) -> Iterator[Mutant]:
    least = len(whole.rstrip())
    for length in range(len(whole)):
        yield Mutant("truncated", whole[:length], same=length >= least, refused=length < least)


def reordered(whole: bytes, rng: random.Random, count: int) -> Iterator[Mutant]:
    for _ in range(count):
        raw = json.loads(whole)
        rng.shuffle(raw["rules"])
        text = json.dumps(shuffled(raw, rng), indent=rng.choice((None, 0, 3, "\t")), ensure_ascii=rng.random() < 0.5)
        yield Mutant("reordered", f"{' ' * rng.randrange(3)}{text}\r\n".encode(), same=True)


def shuffled(value: Any, rng: random.Random) -> Any:
    """The same with the keys of every object in another order."""
    if isinstance(value, dict):
        names = rng.sample(list(value), len(value))
        return {name: shuffled(value[name], rng) for name in names}
    return [shuffled(each, rng) for each in value] if isinstance(value, list) else value


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value within, as keys and indices."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from paths(value[key], (*path, key))


def holder(raw: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        raw = raw[key]
    return raw


def exchanged(whole: bytes) -> Iterator[Mutant]:
    """Each value by each of VALUES and each constant that JSON lacks; each key left out, renamed, or twice."""
    raw, mark = json.loads(whole), "@mark@"
    for path in paths(raw):
        for kind, change in (("left out", None), *(("another value", value) for value in VALUES)):
            changed = deepcopy(raw)
            if kind == "left out":
                del holder(changed, path)[path[-1]]
            else:
                holder(changed, path)[path[-1]] = change
            yield Mutant(kind, json.dumps(changed).encode())
        changed = deepcopy(raw)
        holder(changed, path)[path[-1]] = mark
        text = json.dumps(changed)
        for constant in CONSTANTS:
            yield Mutant("no such number", text.replace(f'"{mark}"', constant).encode(), refused=constant != "1" * 5000)
        if isinstance(path[-1], str) and path[-2:-1] != ("params",):
            name = json.dumps(path[-1])
            value = json.dumps(holder(raw, path)[path[-1]])
            yield Mutant("twice", text.replace(f'"{mark}"', f"{value}, {name}: {value}").encode(), refused=True)
            renamed = deepcopy(raw)
            inner = holder(renamed, path)
            inner[f"{path[-1]}x"] = inner.pop(path[-1])
            yield Mutant("unknown key", json.dumps(renamed).encode(), refused=True)


def overlapping(whole: bytes) -> Iterator[Mutant]:
    raw = json.loads(whole)
    for number, rule in enumerate(raw["rules"]):
        yield Mutant("overlapping", json.dumps({**raw, "rules": [*raw["rules"], rule]}).encode(), refused=True)
        for field, step in (("min_bytes", -1), ("min_bytes", 1), ("max_bytes", -1), ("max_bytes", 1)):
            if rule[field]:
                changed = deepcopy(raw)
                changed["rules"][number][field] += step
                yield Mutant("overlapping", json.dumps(changed).encode(), refused=True)


def newer(whole: bytes) -> Iterator[Mutant]:
    for schema in (SCHEMA + 1, 99, 2**31):
        for more in ({}, {"rules": {"of": "tomorrow"}}, {"topology": 1}, {"unknown": 0}):
            yield Mutant("newer", json.dumps({**json.loads(whole), "schema": schema, **more}).encode(), refused=True)


def flipped(whole: bytes, rng: random.Random, count: int) -> Iterator[Mutant]:
    for _ in range(count):
        text = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 8))):
            text[rng.randrange(len(text))] = rng.randrange(256)
        yield Mutant("bytes changed", bytes(text))


def foreign(whole: bytes) -> Iterator[Mutant]:
    """Files that are something else."""
    text = whole.decode()
    files = (
        b"", b" ", b"\n\n", b"null", b"true", b"0", b'"table"', b"[]", b"{}", b"[" * 100_000, b'{"a":' * 100_000,
        b"[" * 900 + b"]" * 900, b'{"name": "x", "version": "1.0", "dependencies": {}}', b'{"traceEvents": []}',
        b'{"job": 1, "us": [1.0]}\n{"job": 2, "us": [2.0]}\n', b"schema: 1\nrules: []\n", b"[project]\nname = 'x'\n",
        b"\x89PNG\r\n\x1a\n" + bytes(200), b"\x7fELF" + bytes(200), bytes(4096), b"\x1f\x8b\x08", b"%PDF-1.7",
        b"<html></html>", b'{"schema": "\\ud800"}', b'{"\\ud800": 1}', b"\xef\xbb\xbf" + whole, whole + whole,
        whole + b"x", whole + b"\x00", text.encode("utf-16"), text.encode("utf-32"), text.encode("latin-1"),
        whole.replace(b'"', b"'"), whole.replace(b",\n", b",,\n", 1), whole.replace(b"]", b",]", 1),
        b"// a comment\n" + whole, b"[" + whole + b"]", json.dumps(text).encode(),
    )  # fmt: skip
    for each in files:
        if each != whole:  # in another encoding, where it has no letter that differs
            yield Mutant("foreign", each, refused=True)


def no_files() -> Iterator[Mutant]:
    """Paths of what cannot be read as a file."""
    arrangements: tuple[Callable[[Path], object], ...] = (
        Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path), lambda path: path.symlink_to("absent"),
        lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to("/proc/self/mem"),
        lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40), lambda _: None,
    )  # fmt: skip
    for make in arrangements:
        yield Mutant("no file", make=make, refused=True)


def mutants(whole: bytes, rng: random.Random) -> Iterator[Mutant]:
    yield from no_files()
    yield from foreign(whole)
    yield from newer(whole)
    yield from overlapping(whole)
    yield from reordered(whole, rng, 200)
    yield from truncated(whole)
    yield from exchanged(whole)
    yield from flipped(whole, rng, 1000)


# What comes of it


def verdict(mutant: Mutant, path: Path, original: Table) -> tuple[str, str]:
    """What came of reading it (refused, same, another), and what is wrong with that ("": nothing)."""
    if mutant.make is not None:
        mutant.make(path)
    else:
        path.write_bytes(mutant.text)
    try:
        table = load(path).check(path, refused)
    except TableError as error:
        said = str(error)
        if mutant.same:
            return "refused", f"this is the table in another order, and it was refused: {said}"
        if not said.startswith(f"{path}: "):
            return "refused", f"the message does not begin with the file: {said}"
        lacks = [name for name, words in (("place", PLACE), ("mend", MEND)) if not words.search(said, len(str(path)))]
        return "refused", f"the message names no {' and no '.join(lacks)}: {said}" if lacks else ""
    except Exception as error:  # noqa: BLE001 - whatever else comes is what is looked for
        return "crashed", f"{type(error).__name__}: {error}"
    if mutant.refused:
        return "another", "it was read without a word"
    if mutant.same and not (table == original and table.digest() == original.digest()):
        return "same", "it is another table than the original"
    return ("same" if table == original else "another"), secret(table, mutant.text) or unserved(table)


def secret(table: Table, text: bytes) -> str:
    """Whether the table holds something else than the text says; "" where it does not."""
    said = json.loads(text)
    unsorted = msgspec.convert(said, Table)
    held = json.loads(msgspec.json.encode(unsorted))
    if unsorted.check() != table:
        return "what was read is not what stands there"
    return "" if said_in(said, held) else "a value was lost"


def said_in(said: Any, held: Any) -> bool:
    """Whether all that was said is held, of the same value; what is held besides are defaults."""
    if isinstance(said, dict):
        left_out = {name for name, value in said.items() if name not in held and value == DEFAULTS.get(name, ...)}
        return all(name in left_out or (name in held and said_in(said[name], held[name])) for name in said)
    if isinstance(said, list):
        return len(said) == len(held) and all(map(said_in, said, held))
    return bool(said == held or (isinstance(held, float) and float(said) == held))


# Of those that do not write what is at its default.
DEFAULTS = {
    field.name: [] if field.default is msgspec.NODEFAULT else field.default
    for kind in (LinkCost, Conditions) for field in msgspec.structs.fields(kind) if not field.required
}  # fmt: skip


def unserved(table: Table) -> str:
    """A call that the table has rules for, and none for its size."""
    for collective, dtype, op, storage in {rule.key for rule in table.rules}:
        for nbytes in (0, 1, 5792, 5793, 1 << 20, 1 << 62):
            if table.find(collective, nbytes, dtype, op, storage) is None:
                return f"{collective} {dtype} {op} {storage} of {nbytes} bytes is served by no rule"
    return ""


class TooLong(Exception):
    """Reading took more than SECONDS."""


def too_long(_: int, __: object) -> None:
    raise TooLong(f"it took more than {SECONDS:g} s")


def judge(tables: Sequence[bytes], count: int | None, seed: int) -> tuple[Counter[tuple[str, str]], list[str]]:
    """How many mutants of each kind came to what, and what was wrong, a line each."""
    rng, outcomes, wrong = random.Random(seed), Counter[tuple[str, str]](), list[str]()
    before = signal.signal(signal.SIGALRM, too_long)
    try:
        for whole in tables:
            original = parse(whole)
            every = list(mutants(whole, rng))
            for mutant in every if count is None else chosen(every, count, rng):
                with tempfile.TemporaryDirectory(prefix="treering-") as folder:
                    signal.setitimer(signal.ITIMER_REAL, SECONDS)
                    try:
                        outcome, said = verdict(mutant, Path(folder, "mutant.json"), original)
                    except TooLong as error:
                        outcome, said = "hung", str(error)
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                outcomes[mutant.kind, outcome] += 1
                if said:
                    wrong.append(f"{mutant.kind}: {said}\n    {mutant.text[:300]!r}")
    finally:
        signal.signal(signal.SIGALRM, before)
    return outcomes, wrong


def chosen(every: Sequence[Mutant], count: int, rng: random.Random) -> list[Mutant]:
    """So many, of each kind alike, and all of a kind that has few."""
    kinds: dict[str, list[Mutant]] = {}
    for each in every:
        kinds.setdefault(each.kind, []).append(each)
    found, left = list[Mutant](), count
    for place, kind in enumerate(sorted(kinds, key=lambda name: len(kinds[name]))):
        share = min(len(kinds[kind]), left // (len(kinds) - place))
        found += rng.sample(kinds[kind], share)
        left -= share
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, help="so many of each table's, of every kind alike (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("tables", nargs="*", type=Path, metavar="TABLE", help="files, beside the one made here")
    options = parser.parse_args()
    texts = [saved(everything()), *(path.read_bytes() for path in options.tables)]
    outcomes, wrong = judge(texts, options.count, options.seed)
    for (kind, outcome), number in sorted(outcomes.items()):
        print(f"{kind:16}{outcome:10}{number:7}")
    print(f"{sum(outcomes.values())} mutants, {len(wrong)} wrong")
    print("\n".join(wrong[:20]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
