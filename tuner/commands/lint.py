"""Check tuning tables before they are committed: right, in the form that tables are written in, and of one mind."""

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from collectives.errors import TableError
from collectives.selection import Table, load
from collectives.settings import files, refused
from collectives.tables.conditions import OBJECTIVES, PRECISIONS
from collectives.tables.table import (
    ANY,
    COLLECTIVES,
    DTYPE_CLASS,
    DTYPE_CLASSES,
    GPU,
    OP_CLASS,
    OP_CLASSES,
    STORAGES,
    Rule,
)
from tuner import units
from tuner.commands.common import UsageError, add_json, print_json

EXAMPLES = """
  treering lint tuning_tables
  treering lint table.json --fix
  treering lint --schema > table.schema.json
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="files, or folders of tables")
    parser.add_argument("--fix", action="store_true", help="write a table that is right anew, in the form of tables")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of tables instead")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.schema:
        print(json.dumps(schema(), indent=1))
        return 0
    if not args.tables:
        raise UsageError("which tables? name files or folders: treering lint tuning_tables")
    found: dict[Path, list[str]] = {}
    tables: dict[Path, Table] = {}
    for path in (path for given in args.tables for path in files(given)):
        try:
            tables[path] = load(path).check(path, refused)
            found[path] = list(faults(tables[path], path, args.fix))
        except TableError as error:
            found[path] = [str(error).removeprefix(f"{path}: ")]
    for path, fault in twice(tables):
        found[path].append(fault)
    right = not any(found.values())
    if args.json:
        print_json({"ok": right, "tables": {str(path): said for path, said in found.items()}})
    else:
        for path, said in found.items():
            about = f"{len(tables[path].rules)} rules for {tables[path].topology.fingerprint}" if path in tables else ""
            print("\n".join(f"{path}: {each}" for each in said) or f"{path}: right, {about}")
    return int(not right)


def faults(table: Table, path: Path, fix: bool) -> Iterator[str]:
    """What a table that loads should not be committed with."""
    shape, place = table.topology.fingerprint.split(" ")[0], units.shape_name(table.topology.ranks_per_node)
    if shape != place:
        yield f"topology: its fingerprint speaks of {shape}, and ranks_per_node of {place}; measure it anew"
    if table.samples and not (path.parent / table.samples).is_file():
        yield f"samples: {table.samples} is not beside it; put it there, or set samples to null"
    for index, rule in enumerate(table.rules):
        end = rule.max_bytes if rule.max_bytes is not None else float("inf")
        if rule.measured_bytes is not None and not rule.min_bytes <= rule.measured_bytes <= end:
            yield f"rules[{index}] ({rule}): measured_bytes {rule.measured_bytes} lies outside; measure it anew"
    for index, (rule, following) in enumerate(pairwise(table.rules)):
        if same(rule, following):
            yield f"rules[{index + 1}] ({following}): chooses what the rule before it does; make them one"
    if path.read_text(encoding="utf-8") != text_of(table):
        if fix:
            table.save(path)
        else:
            yield "not in the form of tables (sorted, a rule a line), in which they compare: treering lint --fix"


def same(rule: Rule, following: Rule) -> bool:
    return (rule.key, rule.algorithm, rule.params) == (following.key, following.algorithm, following.params)


def text_of(table: Table) -> str:
    """What `save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.json")
        msgspec.structs.replace(table).save(path)
        return path.read_text(encoding="utf-8")


def twice(tables: dict[Path, Table]) -> Iterator[tuple[Path, str]]:
    """Tables of one folder for the same topology, of which a communicator would take the first."""
    first: dict[tuple[Path, str, str | None], Path] = {}
    for path, table in tables.items():
        key = path.parent, table.topology.fingerprint, table.target
        if key in first:
            yield path, f"topology: {first[key]} is for the same, and would be taken; keep one of them in a folder"
        first.setdefault(key, path)


def schema() -> dict[str, Any]:
    """The JSON schema of tables, from the types that read them. What it cannot say: that rules cover each size once."""
    made = msgspec.json.schema(Table)
    names: tuple[tuple[str, str, Sequence[str]], ...] = (
        ("Rule", "collective", COLLECTIVES),
        ("Rule", "dtype", (*DTYPE_CLASS, *DTYPE_CLASSES, ANY)),
        ("Rule", "op", (*OP_CLASS, *OP_CLASSES, ANY)),
        ("Rule", "storage", (*STORAGES, GPU)),
        ("Conditions", "objective", OBJECTIVES),
        ("Conditions", "precision", PRECISIONS),
    )
    for kind, field, allowed in names:
        made["$defs"][kind]["properties"][field]["enum"] = list(allowed)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "treering tuning table", **made}
