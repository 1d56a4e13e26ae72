"""Sizes and durations as people write them: 64K, 1MiB, 8:16M, 60s."""

import re
from collections.abc import Iterable
from typing import Any

from collectives import nest
from collectives.sizes import parse_size

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?", re.IGNORECASE)
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
MANY = 200


def parse_sizes(text: str) -> list[int]:
    """Sizes from a list of sizes and ranges, ascending: `8:16M` doubles from 8 to 16 MiB, `8:16M:4` grows fourfold.

    ValueError says what is wrong and how to write it.
    """
    sizes: set[int] = set()
    for part in text.split(","):
        ends = part.strip().split(":")
        if len(ends) > 3 or not all(ends):
            raise ValueError(f"{part!r} is not a size or a range; write 64K, 8:16M or 8:16M:4")
        low, high = parse_size(ends[0]), parse_size(ends[min(1, len(ends) - 1)])
        if low > high:
            raise ValueError(f"{part!r} runs backwards; write the smaller size first, {ends[1]}:{ends[0]}")
        factor = int(ends[2]) if len(ends) == 3 and ends[2].isdecimal() else 2
        if len(ends) == 3 and (not ends[2].isdecimal() or factor < 2):
            raise ValueError(f"{part!r}: a range's step is a whole factor of at least 2, as in 8:16M:4")
        if low == 0 and high > 0:
            raise ValueError(f"{part!r}: a range grows by factors, so it starts above 0; write 0,8:{ends[1]}")
        while low < high:
            sizes.add(low)
            low *= factor
        sizes.add(high)
    if len(sizes) > MANY:
        raise ValueError(f"{text!r} has {len(sizes)} sizes; at most {MANY}")
    return sorted(sizes)


def parse_duration(text: str) -> float:
    """Seconds: 60, 90s, 2m, 1h, 500ms. ValueError says how to write it."""
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[(match[2] or "").lower()] if match else 0.0
    if not 0 < seconds <= 30 * 86400:
        raise ValueError(f"{text!r} is not a duration; write 60s, 2m or 1h")
    return seconds


def parse_percent(text: str) -> float:
    """A part: 1%, 0.5%, or 5 for 5 %. ValueError says how to write it."""
    try:
        part = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        part = 0.0
    if not 0 < part <= 1:
        raise ValueError(f"{text!r} is not a percentage above 0; write 1% or 0.5%")
    return part


def parse_counts(text: str) -> list[int]:
    """Whole numbers from a list of numbers and ranges: `1-17`, `2,4,8`, `1-4,8`."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if low < 1 or low > high or high > 4096:
            raise ValueError(f"{part!r} is not a number of ranks or a range; write 4, 2,4,8 or 1-17 (1 to 4096)")
        numbers.update(range(low, high + 1))
    return sorted(numbers)


def parse_shapes(text: str) -> list[list[Any]]:
    """Shapes of nodes: `2x3` is 2 nodes of 3 ranks, `3+1` a node of 3 and one of 1, `2x2x3` two racks of 2x3."""
    return [nest.shape(part) for part in text.split(",")]


def shape_name(ranks_per_node: Iterable[int]) -> str:
    """`2x3`, `3+1`."""
    sizes = list(ranks_per_node)
    return f"{len(sizes)}x{sizes[0]}" if len(set(sizes)) == 1 else "+".join(map(str, sizes))


def size(nbytes: int | None) -> str:
    """Short and exact: 64 KiB, 1 MiB, 5792 B; "inf" for no end."""
    if nbytes is None:
        return "inf"
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes and nbytes % (1 << power) == 0:
            return f"{nbytes >> power} {unit}"
    return f"{nbytes} B"


def time(us: float | None) -> str:
    """Three figures: 0.92 us, 14.1 us, 2.65 ms."""
    if us is None:
        return "-"
    if us < 1000:
        return f"{us:.3g} us" if us < 100 else f"{us:.0f} us"
    return f"{us / 1e3:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"
