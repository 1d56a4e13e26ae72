"""The same source under ThreadSanitizer: no two threads touch a word unordered, whatever the order that flags give."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from collectives.algorithms import find
from collectives.cuda import layout as at
from collectives.cuda import source
from collectives.cuda.tables import lowered
from tests.cuda import on_cpu

pytestmark = pytest.mark.skipif(on_cpu.compiler() is None, reason="g++ is not installed: apt-get install g++")

RANKS, COUNT, TURNS = 3, 301, 25
ALGORITHMS: tuple[tuple[str, dict[str, int]], ...] = (
    ("ring", {"segment_bytes": 256, "slots": 2}),
    ("recursive_doubling", {}),
)  # more pieces than a FIFO holds
MUTANTS = {  # what keeps ranks apart, taken away
    "no closing meeting": (
        "if ((direct || call.gives) && !meet(g, FOLDED, epoch, 0, 0, lost)) return;",
        "if (!direct && call.gives && !meet(g, FOLDED, epoch, 0, 0, lost)) return;",
    ),
    "one half of staging": ("u32 half = ++epoch % 2;", "u32 half = 0 * ++epoch;"),
    "a signal before all have written": ("int block = blockIdx.x;\n    __syncthreads();", "int block = blockIdx.x;"),
    "a flag that orders nothing": ("store_release(&line->epoch, epoch);", "line->epoch = epoch;"),
    "a FIFO too full": ("next - FIFO_DEPTH);", "next - FIFO_DEPTH - 1);"),
}


def program(patience: float = 60.0, replace: tuple[str, str] | None = None) -> str:
    text = source.text([("float32", "sum")])
    if replace is not None:
        assert text.count(replace[0]) == 1, replace[0]
        text = text.replace(*replace)
    arrays, blocks = "", []
    for k, (name, params) in enumerate(ALGORITHMS):
        algorithm = find("allreduce", name)
        schedules = algorithm.schedules(RANKS, **algorithm.check(**params))
        for r in range(RANKS):
            table = lowered(
                schedules[r], "allreduce", RANKS, r, COUNT, 4, piece_bytes=64, segment_bytes=params.get("segment_bytes")
            )
            assert table.slot_bytes <= 1 << 15
            arrays += f"static const i64 TABLE_{k}_{r}[] = {{{', '.join(map(str, table.words))}}};\n"
        blocks.append(table.blocks)
    tables = ", ".join(f"{{{', '.join(f'TABLE_{k}_{r}' for r in range(RANKS))}}}" for k in range(len(ALGORITHMS)))
    return (
        text
        + arrays
        + f"static const i64* TABLES[][{RANKS}] = {{{tables}}};\n"
        + f"static const int SLOTS[] = {{2, 2}}, BLOCKS[] = {{{', '.join(map(str, blocks))}}};\n"
        + f"enum : u64 {{ PATIENCE = {int(1e9 * patience)} }};\n"
        + f"enum {{ RANKS = {RANKS}, COUNT = {COUNT}, TURNS = {TURNS}, STAGING_AT_ = {at.STAGING_AT} }};\n"
        + (Path(__file__).parent / "races.cpp").read_text()
    )


def run(code: str) -> subprocess.CompletedProcess[str]:
    made = on_cpu.build("races", code, "-fsanitize=thread", "-Wno-tsan")
    # Where addresses are spread more widely than the sanitizer expects, it would refuse to start.
    command = ["setarch", "-R", str(made)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_no_data_races():
    done = run(program())
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[:6000]}"
    assert "0 wrong" in done.stdout


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_race_would_be_found(mutant):
    done = run(program(2.0, MUTANTS[mutant]))
    assert done.returncode != 0, done.stdout
