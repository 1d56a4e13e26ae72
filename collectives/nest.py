"""Groups of groups of ranks, to any depth: sockets of nodes, nodes of racks, racks of halls.

As text, 2x3 is two groups of three ranks, and 3+1 a group of three and one of one; 2x2x3 is two groups of 2x3, and
(2+1)+(3+1) a group of 2+1 and one of 3+1.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

Nest: TypeAlias = Sequence[Any]  # of ranks, or of nests

MOST_RANKS = 4096  # that a text may name


def levels(nest: Nest) -> list[list[Nest]]:
    """The groups of each level, from the outermost one inwards."""
    found, groups = list[list[Nest]](), [nest]
    while groups:
        found.append(groups)
        groups = [member for group in groups for member in group if not isinstance(member, int)]
    return found


def innermost(nest: Nest) -> list[list[int]]:
    """The groups that hold ranks."""
    return [list(group) for level in levels(nest) for group in level if group and isinstance(group[0], int)]


def ranks(nest: Nest) -> list[int]:
    return [rank for group in innermost(nest) for rank in group]


def count(nest: Nest | int) -> int:
    """How many ranks a group, or a rank, is."""
    return 1 if isinstance(nest, int) else sum(map(count, nest))


def pruned(nest: Nest) -> tuple[Any, ...]:
    """Without groups that hold no rank."""
    each = (member if isinstance(member, int) else pruned(member) for member in nest)
    return tuple(member for member in each if isinstance(member, int) or member)


def as_deep_everywhere(nest: Nest) -> bool:
    """Whether no group holds ranks beside one that holds groups."""
    return all(len({isinstance(member, int) for group in level for member in group}) < 2 for level in levels(nest))


def around(nest: Nest, rank: int) -> list[Nest]:
    """The groups that hold the rank, from the innermost one outwards."""
    found = [nest]
    while not isinstance(found[-1][0], int):
        found.append(next(group for group in found[-1] if rank in ranks(group)))
    return found[::-1]


def by_path(members: Sequence[Any], paths: Sequence[Sequence[str]]) -> tuple[Any, ...]:
    """Members in groups of groups by the words of their paths, as far as all paths go and as a word tells any apart."""
    kinds = [len({tuple(path[:words]) for path in paths}) for words in range(1 + min(map(len, paths)))]
    telling = [words for words in range(1, len(kinds)) if kinds[words - 1] < kinds[words] < len(members)]
    return _parted(members, paths, telling)


def _parted(members: Sequence[Any], paths: Sequence[Sequence[str]], telling: Sequence[int]) -> tuple[Any, ...]:
    if not telling:
        return tuple(members)
    parts: dict[tuple[str, ...], list[int]] = {}
    for place, path in enumerate(paths):
        parts.setdefault(tuple(path[: telling[0]]), []).append(place)
    return tuple(
        _parted([members[place] for place in part], [paths[place] for place in part], telling[1:])
        for part in parts.values()
    )


def name(nest: Nest) -> str:
    """As text, for an outermost group of groups."""
    return _named(nest) if len(nest) > 1 else f"1x{_named(nest[0])}"


def _named(nest: Nest) -> str:
    if isinstance(nest[0], int):
        return str(len(nest))
    each = list(map(_named, nest))
    if len(set(each)) == 1:
        return f"{len(each)}x{_in_brackets(each[0], '+')}"
    return "+".join(_in_brackets(word, "+x") for word in each)


def _in_brackets(word: str, signs: str) -> str:
    """Where the word has any of the signs."""
    return f"({word})" if any(sign in word for sign in signs) else word


def shape(text: str) -> list[Any]:
    """The nest that a text names, ranks numbered from 0; a number alone is one group. ValueError: how to write it."""
    supply = iter(range(MOST_RANKS))
    try:
        made = _numbered(_sizes(text.strip()), supply)
        if not as_deep_everywhere(made):
            raise ValueError(text)
    except (ValueError, StopIteration, RecursionError):
        raise ValueError(
            f"{text!r} is no shape of nodes: write 2x3 for two nodes of three ranks, 3+1 for uneven ones, or 2x2x3 for "
            f"two racks of 2x3, up to {MOST_RANKS} ranks"
        ) from None
    return made if isinstance(made[0], list) else [made]


def _sizes(text: str) -> Any:
    """A number of ranks, or a list of such."""
    terms = _apart(text)
    if len(terms) > 1:
        return [_sizes(term) for term in terms]
    if text.startswith("(") and text.endswith(")"):
        return _sizes(text[1:-1])
    count, times, each = text.partition("x")
    if not re.fullmatch("[1-9][0-9]{0,5}", count):
        raise ValueError(text)
    return [_sizes(each)] * int(count) if times else int(count)


def _apart(text: str) -> list[str]:
    """The terms of a sum: what stands between plus signs that are in no brackets."""
    depth, terms = 0, [""]
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "+" and not depth:
            terms.append("")
        else:
            terms[-1] += letter
    return terms


def _numbered(sizes: Any, supply: Iterator[int]) -> list[Any]:
    if isinstance(sizes, int):
        return [next(supply) for _ in range(sizes)]
    return [_numbered(each, supply) for each in sizes]
