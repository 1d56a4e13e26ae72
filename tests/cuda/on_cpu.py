"""The kernels as code for the CPU: the same source, built by g++ with shim.h, called as a driver launches kernels."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from collectives.cuda import source
from collectives.cuda.arguments import Bytes, Call, Group, Places, Rounds, Steps

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "cuda"
FLAGS = ("-std=c++20", "-O1", "-g", "-ffp-contract=off", "-Wall", "-Wno-unknown-pragmas", "-Werror", "-pthread")
TAKES: dict[str, tuple[type[ctypes.Structure], ...]] = {
    "fold": (Places, Places, Bytes), "one_shot": (Group, Call), "exchange": (Group, Call), "steps": (Group, Steps),
    "signals": (Group, Rounds),
}  # fmt: skip
TYPES = {Bytes: "u64", Rounds: "i32"}
KINDS = (
    *((dtype, "sum") for dtype in source.ELEMENTS),
    *((dtype, "avg") for dtype in ("float16", "bfloat16", "float32")),
    ("float32", "prod"), ("float32", "max"), ("float64", "min"), ("bfloat16", "max"), ("int64", "max"),
    ("int32", "and"), ("int32", "xor"),
)  # fmt: skip


def compiler() -> str | None:
    return shutil.which("g++")


def text(kinds: Sequence[tuple[str, str]]) -> str:
    """The source, and for each kernel a function `run_NAME(grid, threads, arguments)`."""
    lines = [source.text(kinds), '#line 1 "run"\n']
    for dtype, op in kinds:
        for kernel, takes in TAKES.items():
            name = source.entry(kernel, dtype, op)
            passed = ", ".join(
                f"*static_cast<const {TYPES.get(kind, kind.__name__)}*>(p[{i}])" for i, kind in enumerate(takes)
            )
            lines.append(
                f'extern "C" void run_{name}(unsigned grid, unsigned threads, void** p) '
                f"{{ launch(grid, threads, [=] {{ {name}({passed}); }}); }}\n"
            )
    return "".join(lines)


def build(name: str, code: str, *flags: str) -> Path:
    """Compile, unless that has been done; two that do at once do not disturb each other."""
    mark = hashlib.sha256(
        "".join([code, (Path(__file__).parent / "shim.h").read_text(), *FLAGS, *flags]).encode()
    ).hexdigest()[:16]
    made = FOLDER / f"{name}-{mark}"
    if not made.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        part = FOLDER / f"{name}-{mark}-{os.getpid()}"
        written = part.with_name(f"{part.name}.cpp")
        written.write_text(code)
        command = ["g++", *FLAGS, *flags, "-I", str(Path(__file__).parent), "-o", str(part), str(written)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[-6000:]}"
        part.replace(made)
        written.unlink()
    return made


@cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(build("kernels.so", text(KINDS), "-shared", "-fPIC")))


def run(kernel: str, dtype: str, op: str, grid: int, threads: int, *arguments: ctypes.Structure) -> None:
    """Launch, and wait for the end."""
    pointers: Any = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
    getattr(library(), f"run_{source.entry(kernel, dtype, op)}")(grid, threads, pointers)
