"""The figures that pages quote, each made from benchmarks/results: do the pages say what the results say?

    python -m benchmarks.figures                       which figures differ; exit status 1 then
    python -m benchmarks.figures --write               put them right in the pages
    python -m benchmarks.figures --rerun peers-2.json  run a benchmark again, into build/figures, and say what has moved

A page holds `<!-- figure NAME -->`, the figure, and `<!-- end -->`. The commands for --rerun are those of the table in
benchmarks/README.md.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp, fsum, log
from pathlib import Path
from textwrap import fill
from typing import Any

from tuner import units

ROOT = Path(__file__).resolve().parents[1]
RESULTS, AGAIN = ROOT / "benchmarks" / "results", ROOT / "build" / "figures"
PAGES = ("README.md", "benchmarks/README.md", "docs/promises.md")
MARK = re.compile(r"(<!-- figure (\S+) -->)(.*?)(<!-- end -->)", re.DOTALL)
COMMAND = re.compile(r"^\| `(\S+\.(?:json|txt))`[^|]*\| `([^`]+)`[^|]*\|$", re.MULTILINE)
GAIN = re.compile(r"with the file over without: (\S+) \[(\S+), \S+\]")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
WIDTH = 90  # characters of a line of words, which has markers beside it
MOVED = 0.1  # relative
NEAR = 0.1  # how much longer than the best a foreseen choice may take, to be called near
SIZES = tuple(1 << power for power in (3, 10, 16, 20, 24, 26))
LIBRARIES = {"openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel MPI"}
NAMES = {"treering": "treering", **LIBRARIES, "gloo": "Gloo"}


def peers(results: Path, ranks: int) -> str:
    """Allreduce of float32 beside everyone: a table."""
    rows = {row["bytes"]: row["us"] for row in allreduce(results, ranks)}
    lines = [[units.size(nbytes), *(units.time(rows[nbytes][name]["median"]) for name in NAMES)] for nbytes in SIZES]
    return table(["message", *NAMES.values()], lines)


def faster(results: Path, ranks: int) -> str:
    """How many times as fast as the best library, and as Gloo: a sentence."""
    rows = allreduce(results, ranks)
    best = [max(row["ratios"]["treering"][name]["median"] for name in LIBRARIES) for row in rows]
    slower = sum(any(row["ratios"]["treering"][name]["low"] > 1 for name in LIBRARIES) for row in rows)
    gloo = [1 / row["ratios"]["treering"]["gloo"]["median"] for row in rows]
    first, last = units.size(rows[0]["bytes"]), units.size(rows[-1]["bytes"])
    return (
        f"on {ranks} ranks, at {len(rows)} sizes from {first} to {last}, {1 / mean(best):.2f} times as fast as the "
        f"best of the three libraries in the geometric mean, slower at {slower or 'none'}, and {min(gloo):.1f} to "
        f"{max(gloo):,.0f} times as fast as Gloo"
    )


def allreduce(results: Path, ranks: int) -> list[Any]:
    rows = read(results / f"peers-{ranks}.json")["rows"]
    return [row for row in rows if (row["collective"], row["dtype"]) == ("allreduce", "float32")]


def ddp(results: Path) -> str:
    """Whole training steps: a table."""
    ways = ("alone", "gloo", "treering")
    lines = [
        [row["model"], str(row["ranks"]), *(f"{row['ms'][way]['median']:.1f} ms" for way in ways)]
        for row in read(results / "ddp.json")["rows"]
    ]
    return table(["model", "ranks", "no communication", "over Gloo", "over treering"], lines)


def target(results: Path, library: str) -> str:
    """What its file of rules gains a library's own allreduce, proof by proof: words."""
    text = (results / f"target-{library}-4.txt").read_text(encoding="utf-8")
    proofs = [found for part in re.split(r"^.* proof\b", text, flags=re.MULTILINE) if (found := GAIN.findall(part))]
    means = ", ".join(f"{mean([float(ratio) for ratio, _ in proof]):.2f}" for proof in proofs)
    slower = sum(float(low) > 1 for proof in proofs for _, low in proof)
    return f"{means} of its time without, over {len(proofs[0])} sizes, and slower by its interval at {slower or 'none'}"


def foresight(results: Path) -> str:
    """How far predictions were off: a sentence."""
    found = read(results / "foresight-2.json")
    unseen = sum(not size["fitted"] for size in found["sizes"])
    most, errors = max(size["regret"] for size in found["sizes"]), sorted(found["errors"].values())
    return (
        f"at the {unseen} sizes that were not fitted the median error of all candidates is {found['median_error']:.0%} "
        f"({errors[0]:.0%} to {errors[-1]:.0%} by algorithm), and what is foreseen as the fastest takes at most "
        f"{most:.0%} longer than the fastest that was measured, at all {len(found['sizes'])} sizes"
    )


def foresight_hosts(results: Path, bed: str) -> str:
    """How far predictions between hosts were off: words."""
    found = read(results / f"foresight-hosts-{bed}.json")
    near = sum(size["regret"] <= NEAR for size in found["sizes"])
    return (
        f"the median error at sizes that were not fitted is {found['median_error']:.0%}, and the choice is within "
        f"{NEAR:.0%} of the best at {near} of {len(found['sizes'])} sizes"
    )


def step_between_hosts(results: Path, bed: str) -> str:
    """A training step's time over Gloo's."""
    (row,) = read(results / f"ddp-hosts-{bed}.json")["rows"]
    return f"{row['over_gloo']['median']:.2f}"


def agreement(results: Path) -> str:
    """What publishing and comparing calls costs the smallest one: words, short enough for a table's cell."""
    found = read(results / "agreement.json")
    compared, _, alone = found["nanoseconds"].values()
    return f"{compared - alone:.0f} ns, {compared / alone - 1:.0%} at {found['bytes']} bytes"


def faults(results: Path) -> str:
    """What came of ranks killed and stopped under MPI libraries: words."""
    said = []
    tallies = read(results / "faults.json")
    for library, found in ((name, tallies[name]) for name in LIBRARIES if name in tallies):
        struck, most = found["struck"], found["seconds_to_exit"]
        wrong, late = (len(found[what]) or "none" for what in ("wrong", "late"))
        said.append(
            f"{LIBRARIES[library]} {struck['kill']} kills and {struck['stop']} stops, {wrong} wrong, {late} late, "
            f"at most {most['kill']['most']:.1f} and {most['stop']['most']:.1f} s to the last process's end"
        )
    return "; ".join(said)


def search(results: Path) -> str:
    """Two tunings beside an exhaustive search: a table."""
    goals = read(results / "search.json")["goals"]
    return table(["goal", "met", "measured"], [[what, "yes" if met else "no", figure] for what, met, figure in goals])


FIGURES: Mapping[str, tuple[str, Callable[[Path], str]]] = {
    "peers-2": ("peers-2.json", lambda results: peers(results, 2)),
    "faster-2": ("peers-2.json", lambda results: faster(results, 2)),
    "faster-4": ("peers-4.json", lambda results: faster(results, 4)),
    "ddp": ("ddp.json", ddp),
    "target-openmpi": ("target-openmpi-4.txt", lambda results: target(results, "openmpi")),
    "target-mpich": ("target-mpich-4.txt", lambda results: target(results, "mpich")),
    "foresight": ("foresight-2.json", foresight),
    "foresight-2x1": ("foresight-hosts-2x1.json", lambda results: foresight_hosts(results, "2x1")),
    "foresight-2x2": ("foresight-hosts-2x2.json", lambda results: foresight_hosts(results, "2x2")),
    "step-2x1": ("ddp-hosts-2x1.json", lambda results: step_between_hosts(results, "2x1")),
    "step-2x2": ("ddp-hosts-2x2.json", lambda results: step_between_hosts(results, "2x2")),
    "agreement": ("agreement.json", agreement),
    "faults": ("faults.json", faults),
    "search": ("search.json", search),
}  # each with the result that it is made from


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def mean(ratios: Sequence[float]) -> float:
    """Geometric."""
    return exp(fsum(map(log, ratios)) / len(ratios))


def table(heading: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(heading) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heading, rule, *lines))


def written(page: str) -> str:
    """A page's text with each figure as the committed results have it. KeyError for a figure that is none."""

    def put(match: re.Match[str]) -> str:
        text = FIGURES[match[2]][1](RESULTS)
        # A marker at the start of a line would end the paragraph, so words begin and end right at theirs.
        text = f"\n\n{text}\n\n" if text.startswith("|") else fill(text, WIDTH)
        return f"{match[1]}{text}{match[4]}"

    return MARK.sub(put, page)


def stale(page: str) -> Iterator[str]:
    """Names of figures that a page's text has otherwise than the committed results."""
    for was, now in zip(MARK.finditer(page), MARK.finditer(written(page)), strict=True):
        if was[3] != now[3]:
            yield was[2]


def commands() -> dict[str, str]:
    """What made each result, as benchmarks/README.md has it."""
    return dict(COMMAND.findall((ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")))


def rerun(name: str) -> None:
    """Make a result again, in AGAIN."""
    AGAIN.mkdir(parents=True, exist_ok=True)
    words = shlex.split(commands()[name])
    print(f"$ {shlex.join(words)}", flush=True)
    if words[0] == "python":
        words = [sys.executable, *words[1:], *([] if "--json" in words else ["--json", str(AGAIN / name)])]
        subprocess.run(words, cwd=ROOT, check=True)
    else:
        done = subprocess.run([sys.executable, "-m", "tuner.cli", *words[1:]], cwd=AGAIN, check=True, text=True,
                              stdout=subprocess.PIPE)  # fmt: skip
        if name.endswith(".txt"):
            (AGAIN / name).write_text(done.stdout, encoding="utf-8")


def moved(before: str, after: str) -> list[tuple[str, str]]:
    """Numbers of a figure that differ by more than MOVED, as they were and as they are."""
    pairs = zip(NUMBER.findall(before), NUMBER.findall(after), strict=False)
    values = [(was, now, float(was.replace(",", "")), float(now.replace(",", ""))) for was, now in pairs]
    return [(was, now) for was, now, a, b in values if abs(a - b) > MOVED * max(a, b)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="put the figures right in the pages")
    what.add_argument("--rerun", nargs="*", metavar="RESULT", help="run these benchmarks again, or all that are quoted")
    options = parser.parse_args()
    if options.rerun is not None:
        return again(options.rerun or list(dict.fromkeys(result for result, _ in FIGURES.values())))
    status = 0
    for page in PAGES:
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        names = list(stale(text))
        if names and options.write:
            path.write_text(written(text), encoding="utf-8")
        elif names:
            status = 1
        print(f"{page}: {len(MARK.findall(text))} figures, of which differ: {', '.join(names) or 'none'}")
    return status


def again(results: Sequence[str]) -> int:
    if unknown := [name for name in results if name not in commands()]:
        print(f"no command is known for {', '.join(unknown)}; there are {', '.join(commands())}", file=sys.stderr)
        return 2
    for name in results:
        rerun(name)
    for name, (result, figure) in FIGURES.items():
        if result in results:
            changes = moved(figure(RESULTS), figure(AGAIN))
            print(f"{name}: " + (", ".join(f"{was} is now {now}" for was, now in changes) or "has not moved"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
