"""JSON as a table's reader takes it: no key twice in an object, no NaN; what is wrong is named by its place."""

import json
import re
from collections.abc import Iterator
from typing import Any

from collectives.errors import TableError

MEND = "correct it, restore the file, or tune again"
CONSTANT = re.compile(r'"(?:[^"\\]|\\.)*"|(-?Infinity|NaN)')  # not within a string


class Twin(dict[str, Any]):
    """An object in which a key stands twice: which one."""

    key = ""


def no_twins(text: bytes, path: object) -> None:
    """TableError where a key stands twice, or a number is not finite: JSON parsers let both pass without a word.

    ValueError and RecursionError where the text is no JSON.
    """
    whole = text.decode()

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        known = dict(items)
        if len(known) == len(items):
            return known
        names = [name for name, _ in items]
        twin = Twin(known)
        twin.key = next(name for name in names if names.count(name) > 1)
        return twin

    def constant(name: str) -> None:
        found = next(match for match in CONSTANT.finditer(whole) if match[1])
        line = whole.count("\n", 0, found.start()) + 1
        raise TableError(f"{path}: line {line}: {name} is not a number; only finite ones are allowed: {MEND}")

    for place, key in _twins(json.loads(whole, object_pairs_hook=pairs, parse_constant=constant), ""):
        raise TableError(f"{path}: {place or 'its object'}: key {key!r} stands twice; remove one of the two")


def _twins(value: object, place: str) -> Iterator[tuple[str, str]]:
    """Where a key stands twice, and which; the outer object before what it holds."""
    if isinstance(value, Twin):
        yield place, value.key
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _twins(inner, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _twins(inner, f"{place}[{number}]")
