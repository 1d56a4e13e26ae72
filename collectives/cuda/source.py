"""The kernels' source as one text for a compiler, with what Python knows of tables and windows as its constants."""

import ctypes
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from collectives import layout as table
from collectives.cuda import layout as at
from collectives.cuda.arguments import Call, Group, Places, Steps
from collectives.dtypes import OPS

FOLDER = Path(__file__).parent
HEADERS = ("device.cuh", "fold.cuh", "window.cuh", "exchange.cuh", "steps.cuh")
KERNELS = ("fold", "one_shot", "exchange", "steps", "signals")
ELEMENTS = {
    "float16": "Float16", "bfloat16": "BFloat16", "float32": "Float32", "float64": "Float64",
    "int32": "Int32", "int64": "Int64",
}  # fmt: skip
# No contraction: a mean's bits must not depend on which operand comes first. Denormals stay, division is exact.
OPTIONS = ("--std=c++17", "--fmad=false")

ENUMERATIONS = {
    "KIND": {"SEND": table.SEND, "RECV": table.RECV, "FOLD": table.FOLD},
    "LANDING": {"PLAIN": table.PLAIN, "STREAMED": table.STREAMED},
    "TABLE": {"PHASES": table.N_PHASES, "PIECE_BYTES": table.PIECE_BYTES},
    "SECTION": {
        name: getattr(table, name) for name in ("PHASES", "LANES", "ROUNDS", "ROWS", "TERMS", "WEIGHTS")
    },
    "AT": {
        name: getattr(table, name)
        for name in (
            "FIRST_LANE", "END_LANE", "N_ROUNDS", "SEGMENTS", "SLOTS", "FIRST_ROUND", "FIRST_INSTANCE", "CHANNEL",
            "FIRST_ROW", "ROW_COUNT", "KIND", "PEER", "BUFFER", "OFFSET", "STRIDE", "LENGTH", "FULL", "TAIL_OFFSET",
            "TAIL_LENGTH", "SLOT_STRIDE", "LANDING", "STAGE", "PREVIOUS", "FIRST_TERM", "TERM_COUNT", "AFTER",
            "END_AFTER", "STREAM", "TERM_ROW", "TERM_BUFFER", "TERM_OFFSET", "TERM_STRIDE", "TERM_TAIL_OFFSET",
            "TERM_SLOT_STRIDE",
        )
    },
}  # fmt: skip
SINGLE = {
    **{f"{kind.__name__.upper()}_BYTES": ctypes.sizeof(kind) for kind in (Places, Group, Call, Steps)},
    "PHASE_WORDS": table.PHASE_WORDS, "LANE_WORDS": table.LANE_WORDS, "ROUND_WORDS": table.ROUND_WORDS,
    "ROW_WORDS": table.ROW_WORDS, "TERM_WORDS": table.TERM_WORDS, "TERM_OWN": table.OWN, "BUFFER_SLOT": table.SLOT,
    **{
        name: getattr(at, name)
        for name in (
            "MAX_RANKS", "MAX_BLOCKS", "MAX_ROWS", "MOST_THREADS", "LINE_BYTES", "LINES_AT", "FIFO_DEPTH", "LOOKS",
            "TIMED_OUT", "STOPPED",
        )
    },
}  # fmt: skip


def constants() -> str:
    """Enumerations of what Python's layouts say."""
    words = {f"OP_{name.upper()}": number for number, name in enumerate(OPS)} | SINGLE
    for prefix, entries in ENUMERATIONS.items():
        words |= {f"{prefix}_{name}": value for name, value in entries.items()}
    return "enum {" + ", ".join(f"{name} = {value}" for name, value in words.items()) + "};\n"


@cache
def _body(name: str) -> str:
    """A file's text, without what joins it to the others."""
    lines = (FOLDER / name).read_text().splitlines()
    joins = ('#include "', "#pragma once")
    kept = (line if not line.startswith(joins) or "shim.h" in line else "" for line in lines)
    return f'#line 1 "{name}"\n' + "\n".join(kept) + "\n"


def text(kinds: Iterable[tuple[str, str]]) -> str:
    """One source with every kernel for each (dtype, op). KeyError for a dtype that is not served on devices."""
    parts = [constants(), *map(_body, HEADERS)]
    for dtype, op in kinds:
        parts += [
            f"#define ELEMENT {ELEMENTS[dtype]}\n#define OPERATION OP_{op.upper()}\n",
            f"#define KERNEL(name) name##_{dtype}_{op}\n",
            _body("kernels.cu"),
            "#undef ELEMENT\n#undef OPERATION\n#undef KERNEL\n#undef ENTRY\n",
        ]
    return "".join(parts)


def entry(kernel: str, dtype: str, op: str) -> str:
    """The name of a kernel in a module."""
    return f"{kernel}_{dtype}_{op}"


@cache
def digest() -> str:
    """Of all that makes the kernels what they are: what a cache of compiled ones is named by."""
    return hashlib.sha256("".join([constants(), *map(_body, (*HEADERS, "kernels.cu"))]).encode()).hexdigest()[:16]
