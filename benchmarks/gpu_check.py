"""What only a GPU can show: benchmarks/gpu_check.sh runs it. One process plays several ranks, as streams; then two
processes meet by IPC and through the host; then the hook; then times, against what the device itself can do.

Each part stands alone: one that fails is reported, and the next begins. Exit status 1 if any did.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_ranks import VirtualRanks
from collectives.cuda.arguments import Bytes, Call, Places, Rounds
from collectives.cuda.choice import ONE_SHOT, TWO_SHOT
from collectives.cuda.driver import Driver, driver
from collectives.cuda.layout import EVERYONE
from collectives.cuda.window import Shape

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20


def timed(d: Driver, run: Callable[[], None], streams: Sequence[int], turns: int = 20, repeats: int = 7) -> float:
    """Microseconds of one run, the median of several rows of `turns`, each waited for by the host at its end."""
    found = []
    for _ in range(repeats):
        for stream in streams:
            d.synchronize(stream)
        began = time.perf_counter()
        for _ in range(turns):
            run()
        for stream in streams:
            d.synchronize(stream)
        found.append((time.perf_counter() - began) / turns * 1e6)
    return statistics.median(found)


def correctness(sizes: Sequence[int] = (2, 3, 4)) -> dict[str, Any]:
    """Every kernel and dtype, 2 to 4 virtual ranks, odd sizes and offsets, against the CPU's bits."""
    from tests.cuda.cases import cases, exchange

    counts: dict[str, Any] = {}
    for size in sizes:
        ranks = VirtualRanks(size, Shape(slot_bytes=256, fifo_bytes=256))
        wrong = 0
        calls = cases(ranks)
        for i, (kernel, case) in enumerate(calls):
            for rank in range(size):
                case.fill(rank)
            blocks = 1 + i % 3
            arguments = [
                exchange(case, rank)
                if kernel == "exchange"
                else Call(*case.addresses(rank), case.count, piece=ranks.shape.slot_bytes)
                for rank in range(size)
            ]
            ranks.run(kernel, case.dtype, case.op, blocks, 64, arguments)
            for rank in range(size):
                try:
                    case.check(rank, kernel)
                except AssertionError as error:
                    wrong += 1
                    print(error, file=sys.stderr)
        counts[f"{size} ranks"] = {"calls": len(calls), "wrong": wrong}
        ranks.close()
    return counts | {"ok": not any(each["wrong"] for each in counts.values())}


def fold_rate() -> dict[str, Any]:
    """The n-ary fold of 4 inputs against the device's copy rate: bytes read and written in a second."""
    d = driver()
    rows: list[dict[str, Any]] = []
    stream = d.stream()
    for mib in (16, 64, 256):
        n_bytes = mib * MIB
        places = [d.allocate(n_bytes) for _ in range(5)]
        copied = timed(d, lambda: d.copy(places[0], places[1], n_bytes, stream), [stream])  # noqa: B023
        for dtype in ("float32", "bfloat16"):
            function = d.function("fold", dtype, "sum")
            arguments = Places.of(places[:1]), Places.of(places[1:]), Bytes(n_bytes)
            grid = d.properties(0).multiprocessors * 2
            took = timed(d, lambda: d.launch(function, grid, 512, arguments, stream), [stream])  # noqa: B023
            rate, most = 5 * n_bytes / took / 1e3, 2 * n_bytes / copied / 1e3
            rows.append({"MiB": mib, "dtype": dtype, "fold_GBps": rate, "copy_GBps": most, "share": rate / most})
        for place in places:
            d.free(place)
    return {"ok": all(row["share"] >= 0.85 for row in rows if row["MiB"] >= 64), "rows": rows}


def latency() -> dict[str, Any]:
    """One-shot and two-shot of 2 virtual ranks by size, against a meeting that moves nothing."""
    ranks = VirtualRanks(2, Shape(), room=64 * MIB)
    rows: list[dict[str, Any]] = []
    d = ranks.driver
    rounds = [Rounds(1)] * 2
    empty = timed(d, lambda: ranks.launch("signals", "float32", "sum", 1, 512, rounds), ranks.streams, 50)
    many = timed(d, lambda: ranks.launch("signals", "float32", "sum", 1, 512, [Rounds(1001)] * 2), ranks.streams, 3)
    for n_bytes in (1 << 10, 16 << 10, 256 << 10, 4 * MIB, 64 * MIB):
        for name in (ONE_SHOT, TWO_SHOT):
            blocks = max(1, min(32, n_bytes // (16 << 10)))
            calls = [Call(x, x, n_bytes // 4, 4, ranks.shape.slot_bytes, 1, EVERYONE, EVERYONE) for x in ranks.inputs]
            kernel = "one_shot" if name == ONE_SHOT else "exchange"
            took = timed(
                d, lambda: ranks.launch(kernel, "float32", "sum", blocks, 512, calls), ranks.streams, 20  # noqa: B023
            )  # fmt: skip
            rows.append({"bytes": n_bytes, "algorithm": name, "us": took, "in_meetings": took / empty})
    ranks.close()
    small = next(row for row in rows if row["bytes"] == 16 << 10 and row["algorithm"] == ONE_SHOT)
    about = {"launch_and_meeting_us": empty, "meeting_us": (many - empty) / 1000}
    return {"ok": small["in_meetings"] <= 2, **about, "rows": rows}


def processes(part: str, seconds: float = 90) -> dict[str, Any]:
    """A part for two processes, which meet in a file: benchmarks/gpu_ranks.py."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder, "store"))
        command = [sys.executable, "-m", "benchmarks.gpu_ranks", part, store]
        started = [subprocess.Popen([*command, str(rank)], cwd=ROOT, stdout=subprocess.PIPE) for rank in range(2)]
        try:
            said = [process.communicate(timeout=seconds)[0] for process in started]
        finally:
            for process in started:
                process.kill()
        if any(process.returncode for process in started):
            raise RuntimeError(f"exit status {[process.returncode for process in started]}")
        found: dict[str, Any] = json.loads(said[0].splitlines()[-1])
        return found


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "kernels": correctness,
    "ipc": lambda: processes("ipc"),
    "staged": lambda: processes("staged"),
    "hook": lambda: processes("hook"),
    "fold": fold_rate,
    "latency": latency,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("build/gpu_check.json"))
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one; may be given again")
    wanted = parser.parse_args()
    d = driver()
    about = d.properties(0)
    d.use(0)
    results: dict[str, Any] = {"device": about.name, "capability": about.capability, "driver": about.driver}
    for name in wanted.part or PARTS:
        began = time.monotonic()
        try:
            results[name] = PARTS[name]()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other parts still tell something
            traceback.print_exc()
            results[name] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        results[name]["seconds"] = time.monotonic() - began
        print(f"{name:10} {'ok' if results[name]['ok'] else 'FAILED':8} {results[name]['seconds']:6.1f} s", flush=True)
        wanted.output.parent.mkdir(parents=True, exist_ok=True)
        wanted.output.write_text(json.dumps(results, indent=1) + "\n")
    for name in ("fold", "latency", "staged"):
        for row in results.get(name, {}).get("rows", ()):
            print(name, " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()))
    return 0 if all(results[name]["ok"] for name in wanted.part or PARTS) else 1


if __name__ == "__main__":
    sys.exit(main())
