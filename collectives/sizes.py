"""Sizes as people write them: 8, 64K, 1MiB, 1.5G."""

import re

LARGEST = 1 << 40
_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes; K, M, G and T count in powers of 1024. ValueError says how to write it."""
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * (1 << _POWERS[match[2].lower()]) if match else -1.0
    if size != int(size) or not 0 <= size <= LARGEST:
        raise ValueError(f"{text!r} is not a size; write whole bytes as in 8, 64K, 1MiB, 1G (at most 1T)")
    return int(size)
