"""How `treering bench` prints its rows: JSON, CSV, the tables of nccl-tests and of OSU, and one for a person."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from collectives.contract import REDUCING, ROOTED
from tuner import units
from tuner.space import candidate


@dataclass(frozen=True)
class Row:
    collective: str
    bytes: int
    count: int
    dtype: str
    op: str
    ranks: int
    nodes: int
    contender: str
    algorithm: str
    params: dict[str, Any]
    median_us: float
    low_us: float
    high_us: float
    algbw_GBps: float  # noqa: N815 - the unit's own spelling
    busbw_GBps: float  # noqa: N815
    wrong: int


def as_json(rows: Sequence[Row], about: dict[str, Any]) -> str:
    return json.dumps({"context": about, "rows": [asdict(row) for row in rows]}, indent=1, allow_nan=False) + "\n"


def as_csv(rows: Sequence[Row], _: dict[str, Any]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(Row.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**asdict(row), "params": label(row).partition(":")[2]} for row in rows)
    return text.getvalue()


def label(row: Row) -> str:
    return str(candidate(row.algorithm, row.params))


def head(about: dict[str, Any]) -> str:
    shape = units.shape_name(about["ranks_per_node"])
    return f"# {shape} ranks, {', '.join(about['links'])}, {about['mpi']}, {about['cpu']}, {about['date']}\n"


def as_nccl(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """nccl-tests' table; a block for each contender and algorithm."""
    lines = [head(about)]
    for name, group in grouped(rows):
        lines.append(f"#\n# {name}\n#\n")
        titles = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong")
        unit = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "")
        widths = (12, 12, 9, 7, 6, 9, 8, 8, 7)
        lines += [
            "#" + "".join(f"{t:>{w}}" for t, w in zip(words, widths, strict=True)) + "\n" for words in (titles, unit)
        ]
        for row in group:
            root = 0 if row.collective in ROOTED else -1
            op = row.op if row.collective in REDUCING else "none"
            values = (row.bytes, row.count, row.dtype, op, root, f"{row.median_us:.2f}", f"{row.algbw_GBps:.2f}",
                      f"{row.busbw_GBps:.2f}", row.wrong)  # fmt: skip
            lines.append(" " + columns(values, widths))
        mean = sum(row.busbw_GBps for row in group) / len(group)
        lines.append(f"# Avg bus bandwidth    : {mean:.4f}\n")
    return "".join(lines)


def columns(values: Sequence[object], widths: Sequence[int]) -> str:
    return "".join(f"{value!s:>{width}}" for value, width in zip(values, widths, strict=True)) + "\n"


def as_osu(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """The form of the OSU benchmarks; a block for each contender and algorithm."""
    lines = [head(about)]
    for name, group in grouped(rows):
        lines.append(f"\n# {name}\n# Size       Avg Latency(us)\n")
        lines += [f"{row.bytes:<10}{row.median_us:>18.2f}\n" for row in group]
    return "".join(lines)


def grouped(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    automatic = len({row.algorithm for row in rows if row.contender == "treering"}) > 1
    per_size = [row.bytes for row in rows if row.contender == "treering"]
    by_algorithm = automatic and len(per_size) > len(set(per_size))
    for row in rows:
        name = f"treering {label(row)}" if row.contender == "treering" and by_algorithm else row.contender
        groups.setdefault(name, []).append(row)
    return list(groups.items())


def as_table(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """For a person: all contenders of a size together, the fastest marked, and each against the MPI library's own."""
    names = {id(row): f"treering {label(row)}" if row.contender == "treering" else row.contender for row in rows}
    wide = 2 + max((len(name) for name in names.values()), default=9)
    lines = [head(about)]
    lines.append(f"{'bytes':>10}  {'contender':{wide}}{'median':>10}  {'95 %':22}{'busbw GB/s':>10}{'x native':>10}\n")
    for nbytes in sorted({row.bytes for row in rows}):
        same = sorted((row for row in rows if row.bytes == nbytes), key=lambda row: row.median_us)
        base = next((row.median_us for row in same if row.contender == "native"), None)
        for place, row in enumerate(same):
            at, best = (units.size(nbytes), " *") if place == 0 else ("", "")
            interval = f"{units.time(row.low_us)} to {units.time(row.high_us)}"
            against = f"{base / row.median_us:.2f}" if base else "-"
            flaws = f"  {row.wrong} WRONG" if row.wrong else ""
            lines.append(
                f"{at:>10}  {names[id(row)]:{wide}}{units.time(row.median_us):>10}  {interval:22}"
                f"{row.busbw_GBps:>10.2f}{against:>10}{best}{flaws}\n"
            )
    return "".join(lines)


FORM = {"table": as_table, "nccl": as_nccl, "osu": as_osu, "json": as_json, "csv": as_csv}
