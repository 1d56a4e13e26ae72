"""Where in the user's program a collective is called: TREERING_DEBUG=1 lets ranks compare that, too.

Ranks that make equal calls in different places of their program are seldom meant to; without this they go on, each with
the other's data. A place is a word: a hash of the file's last two parts, and the line.
"""

import os
import sys
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import FrameType

VARIABLE = "TREERING_DEBUG"
OWN = ("collectives", "integrations")
LINE_BITS = 32


def compared() -> bool:
    """Whether TREERING_DEBUG asks for it."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def site_of_caller() -> int:
    """The place in the user's program that has called into treering, as a word; 0 where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OWN:
        frame = frame.f_back
    return mark(frame.f_code.co_filename) << LINE_BITS | frame.f_lineno if frame is not None else 0


def short(path: str) -> str:
    return "/".join(Path(path).parts[-2:])


@cache
def mark(path: str) -> int:
    """31 bits of a file's name, equal wherever it is installed."""
    return int.from_bytes(blake2b(short(path).encode(), digest_size=4).digest(), "little") >> 1


def site_named(word: int) -> str:
    """A place for a person: any rank's, if this one has loaded the file."""
    if word == 0:
        return "not known"
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    found = next((path for path in files if path and mark(path) == word >> LINE_BITS), "a file not loaded here")
    return f"{short(found)}:{word & (1 << LINE_BITS) - 1}"
