"""treering on symmetric memory beside treering on ordinary memory, every MPI library, and a plain copy.

    python -m benchmarks.symmetric [-n 2] [--sizes 8:64M] [--collectives allreduce,broadcast] [--dtype float32]
                                   [--libraries mpich,openmpi,impi] [--seconds 0.2] [--rounds 1] [--json FILE]

One launch for each library and round. Within it contenders take turns in random order, on an input that its rank has
just written in that contender's own memory, and all ranks begin at one instant. Ratios are of pairs taken in the same
repetition; allgather's output is what is symmetric, and the input of all others.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks import peers_plot as report
from benchmarks.peers import ITEMSIZE, Call, Message
from tuner import launch, units
from tuner.statistics import Interval, geometric_mean
from tuner.units import parse_sizes

FASTER = ((16 << 10, 2.0), (4 << 20, 3.5))  # bytes: times as fast as the best library from there on, on 2 ranks
MEAN = {2: 2.3, 4: 2.0}  # ranks: times, in the geometric mean over sizes
COPIES = {16 << 20: 0.6, 64 << 20: 0.6}  # bytes: at most so many times a plain copy, on 2 ranks
OURS, ORDINARY = "treering", "ordinary"  # on symmetric memory, and not


# ---------------------------------------------------------------- in every rank
class Plain(Message):
    """A message in ordinary memory; what it is asked about a call is asked of the memory that the call works on."""

    def is_wrong(self, call: Call) -> bool:
        assert isinstance(call, Apart)
        return Message.is_wrong(call.message, call.call)


class Shared(Message):
    """A message whose input (of an allgather: output) is symmetric memory."""

    def __init__(self, case: tuple[str, str, int], comm: Any):
        super().__init__(case, comm.rank, comm.size)
        whole = comm.empty(self.nbytes // ITEMSIZE[self.dtype], self.dtype)
        if self.collective == "allgather":
            self.out = whole
        else:
            self.x = whole


class Rank(peers.Rank):
    """A rank's part in a launch: messages of its own for ours on symmetric memory, another for all others."""

    def work(self) -> None:
        comm, cases = self.comms[OURS], [tuple(each) for each in self.told["cases"]]
        found = []
        for each in cases:
            self.shared = Shared(each, comm)
            found.append(self.case(Plain(each, comm.rank, comm.size), self.makers))
            del self.shared
        if self.world.rank == 0:
            content = {"version": launch.library().version, "cases": found}
            Path(self.told["into"]).write_text(json.dumps(content), encoding="utf-8")
        comm.close()

    def makers(self, message: Message) -> dict[str, Callable[[], Call]]:
        made = super().makers(message)
        made[ORDINARY], (x, out) = made[OURS], (self.shared.x, self.shared.out)
        how = {} if out is None else {"out": out}
        made[OURS] = partial(self.comms[OURS].plan, message.collective, x, **how)
        return {name: partial(Apart, self.shared if name == OURS else message, make) for name, make in made.items()}


class Apart:
    """A call with the memory that it works on."""

    def __init__(self, message: Message, make: Callable[[], Call]):
        self.message, self.call, self.write = message, make(), message.write

    def __call__(self) -> object:
        return self.call()

    @property
    def choice(self) -> Any:
        return self.call.choice  # type: ignore[attr-defined]


def rank_main(told_in: Path) -> int:
    """Start ranks by this interpreter's library; in a rank, do what the file says."""
    told = json.loads(told_in.read_text(encoding="utf-8"))
    if launch.announced() is None:
        ranks = launch.command(told["ranks"], ["-m", "benchmarks.symmetric", "--rank", str(told_in)])
        os.execve(ranks.command[0], ranks.command, {**os.environ, **ranks.environment})
    signal.alarm(int(told["limit"]) + 10)
    Rank(told).work()
    return 0


# ---------------------------------------------------------------- the command
def goals(found: Sequence[report.Row], ranks: int) -> list[report.Goal]:
    """Of each collective beside the library where it does worst at each size; of allreduce beside the copy too."""
    reached = []
    for (collective, dtype), group in report.grouped(found).items():
        best = {
            row.bytes: max(libraries(row).values(), key=lambda ratio: ratio.median) for row in group if libraries(row)
        }
        what = f"{collective} of {dtype}"
        if ranks in MEAN and best:
            mean = 1 / geometric_mean(ratio.median for ratio in best.values())
            reached.append(report.Goal(f"{what}, {MEAN[ranks]} times in the mean", mean >= MEAN[ranks], f"{mean:.2f}"))
        for number, (least, times) in enumerate(FASTER if ranks == 2 else ()):
            below = FASTER[number + 1][0] if number + 1 < len(FASTER) else 1 << 62
            speeds = {nbytes: 1 / ratio.median for nbytes, ratio in best.items() if least <= nbytes < below}
            if speeds:
                short = {units.size(n): f"{speed:.2f}" for n, speed in speeds.items() if speed < times}
                said = ", ".join(f"{size}: {speed}" for size, speed in short.items()) or f"{min(speeds.values()):.2f}"
                reached.append(report.Goal(f"{what}, {times} times from {units.size(least)} on", not short, said))
        for row in group if ranks == 2 and collective == "allreduce" else ():
            ratio = row.ratio(OURS, "copy")
            if ratio and row.bytes in COPIES:
                goal = f"{what}, at most {COPIES[row.bytes]} plain copies at {units.size(row.bytes)}"
                reached.append(report.Goal(goal, ratio.median <= COPIES[row.bytes], report.shown(ratio)))
    return reached


def libraries(row: report.Row) -> dict[str, Interval]:
    return {name: ratio for name, ratio in row.ratios.get(OURS, {}).items() if name in peers.LIBRARIES}


def table(found: Sequence[report.Row]) -> str:
    """Microseconds of each contender, and the ratio of ours on symmetric memory to each other one."""
    lines = []
    for (collective, dtype), group in report.grouped(found).items():
        others = [name for name in (*peers.LIBRARIES, ORDINARY, "copy") if any(name in row.us for row in group)]
        heads = [
            f"{'symmetric':>10}",
            *(f"{name:>10}" for name in others),
            *(f"   {f'to {name}':<20}" for name in others),
        ]
        lines += ["", f"{collective} of {dtype}, microseconds; ratios below 1: symmetric memory is faster"]
        lines.append(f"{'bytes':>10}" + "".join(heads))
        for row in group:
            times = [f"{report.microseconds(row.us.get(name)):>10}" for name in (OURS, *others)]
            ratios = [f"   {report.shown(ratio) if (ratio := row.ratio(OURS, name)) else '-':<20}" for name in others]
            lines.append("".join([f"{units.size(row.bytes):>10}", *times, *ratios]).rstrip())
    return "\n".join(lines[1:])


def main() -> int:
    if sys.argv[1:2] == ["--rank"]:
        return rank_main(Path(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # fmt: off
    parser.add_argument("-n", type=int, default=2, help="ranks (default: %(default)s)")
    parser.add_argument("--sizes", type=parse_sizes, default="8:64M", help="bytes of a message (default: %(default)s)")
    parser.add_argument("--collectives", type=partial(peers.names, peers.COLLECTIVES),
                        default=",".join(peers.COLLECTIVES), help="(default: %(default)s)")
    parser.add_argument("--dtype", choices=list(ITEMSIZE), default="float32", help="(default: %(default)s)")
    parser.add_argument("--libraries", type=partial(peers.names, peers.LIBRARIES), default=",".join(peers.LIBRARIES),
                        help="of those that have an environment (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.2, help="for a size in a launch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="launches of each library (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, and the machine, there")
    # fmt: on
    options = parser.parse_args()
    names = [name for name in options.libraries if Path(peers.PYTHON.format(name)).with_name("mpiexec").exists()]
    cases = [(collective, options.dtype, size) for collective in options.collectives for size in options.sizes]
    told = {"ranks": options.n, "seconds": options.seconds, "cases": cases, "tables": [],
            "limit": 60 + len(cases) * (5 * options.seconds + 5)}  # fmt: skip
    context = report.machine() | {"ranks": options.n, "seconds": options.seconds, "rounds": options.rounds}
    launches, failed, order = list[dict[str, Any]](), list[str](), random.Random(len(cases))
    with tempfile.TemporaryDirectory(prefix="treering-symmetric-") as folder:
        into, told_in = Path(folder, "found.json"), Path(folder, "told.json")
        for number in range(options.rounds):
            for name in order.sample(names, len(names)):
                print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr, flush=True)
                told_in.write_text(json.dumps({**told, "into": str(into)}), encoding="utf-8")
                program = [peers.PYTHON.format(name), "-m", "benchmarks.symmetric", "--rank", str(told_in)]
                try:
                    peers.finished(program, told["limit"], Path(folder, "said.txt"))
                except ChildProcessError as error:  # what the others found counts
                    failed.append(str(error))
                else:
                    launches.append({"library": name, **json.loads(into.read_text(encoding="utf-8"))})
    found, wrong = report.rows(launches), [*failed, *report.faults(launches)]
    reached = goals(found, options.n)
    context["libraries"] = {each["library"]: each["version"] for each in launches}
    print("\n\n".join([report.title(context), table(found), report.verdict(reached), *wrong]))
    if options.json:
        content = {
            "context": context,
            "rows": list(map(asdict, found)),
            "goals": list(map(asdict, reached)),
            "failed": wrong,
        }
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
