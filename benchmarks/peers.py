"""treering beside every MPI library that has an environment, beside Gloo, a plain copy and an update in place.

    python -m benchmarks.peers [-n 2] [--sizes 8:64M] [--collectives allreduce,broadcast] [--dtypes float32,bfloat16]
                               [--libraries mpich,openmpi,impi] [--seconds 0.5] [--rounds 3]
                               [--table FILE | --tune SECONDS] [--json FILE] [--plot FILE]

Libraries cannot share a process, so each round launches them in turn, in random order. Within a launch contenders take
turns in random order, in place, on an input that its rank has just written, and all ranks begin at one instant of the
clock that they share. What treering takes is paired with what that launch's library took in the same repetition.
"""

import argparse
import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import peers_plot as report
from benchmarks.start import Start
from tuner import launch
from tuner.units import parse_duration, parse_sizes

Call = Callable[[], object]

ROOT = Path(__file__).resolve().parents[1]
PYTHON = f"{ROOT}/build/env/{{}}/bin/python"
LIBRARIES = ("mpich", "openmpi", "impi")  # environments, which the Makefile makes
COLLECTIVES = ("allreduce", "broadcast", "reduce", "reduce_scatter", "allgather")
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
LOOKS, LEAST, MOST = 5, 5, 4000  # repetitions: before any is kept, and kept in a launch
DEADLINE = 60.0  # seconds of one call of ours


# ---------------------------------------------------------------- in every rank
class Message:
    """A rank's memory for one collective. x and out are what it takes, out None where it works in place."""

    def __init__(self, case: tuple[str, str, int], rank: int, size: int):
        import torch

        from tuner.cases import chunk

        self.collective, self.dtype, self.nbytes = collective, dtype, nbytes = case
        self.rank, self.size = rank, size
        self.kind: torch.dtype = getattr(torch, dtype)
        self.chunks = [chunk(nbytes // ITEMSIZE[dtype], size, each) for each in range(size)]
        mine, whole = self.chunks[rank], slice(0, nbytes // ITEMSIZE[dtype])
        self.given = mine if collective == "allgather" else whole
        self.made = mine if collective == "reduce_scatter" else whole
        self.x = torch.empty(self.given.stop - self.given.start, dtype=self.kind)
        in_place = self.given is self.made
        self.out = None if in_place else torch.empty(self.made.stop - self.made.start, dtype=self.kind)

    def write(self) -> None:
        """The input, as if this rank had just computed it."""
        self.x.fill_(self.rank + 1)

    def is_wrong(self, call: Call) -> bool:
        """Whether a call's result is not what it must be, to the bit, for an input in which ranks and places differ."""
        import torch

        from tuner.cases import pattern, result

        mine, first = (pattern(self.dtype, "sum", rank, self.size) for rank in (self.rank, 0))
        reduced = result(self.dtype, "sum", self.size)
        right = {"broadcast": first, "allgather": first, "reduce": mine if self.rank else reduced}
        self.x.copy_(self._spread(first if self.collective == "allgather" else mine, self.given))
        if self.out is not None:
            self.out.fill_(-1)
        call()
        made = self.x if self.out is None else self.out
        return not torch.equal(made, self._spread(right.get(self.collective, reduced), self.made))

    def _spread(self, values: list[int], part: slice) -> Any:
        """A period repeated over the message, as far as a part of it goes."""
        import torch

        shift, count = part.start % len(values), part.stop - part.start
        turned = torch.tensor([*values[shift:], *values[:shift]], dtype=self.kind)
        return turned.repeat(-(-count // len(values)))[:count]


def raw(tensor: Any) -> Any:
    """A tensor's memory, which mpi4py takes at little cost."""
    from mpi4py import MPI

    return None if tensor is None else MPI.memory.fromaddress(tensor.data_ptr(), tensor.nbytes)


def native(message: Message, world: Any) -> Call:
    """The library's own collective through mpi4py, on raw memory, with its arguments made beforehand."""
    from mpi4py import MPI

    from tuner.contenders import MPI_TYPES

    kind, counts = getattr(MPI, MPI_TYPES[message.dtype]), [each.stop - each.start for each in message.chunks]
    x, out, even = [raw(message.x), kind], [raw(message.out), kind], len(set(counts)) == 1
    uneven = [raw(message.out), (counts, None), kind]
    calls: dict[str, tuple[Any, ...]] = {
        "allreduce": (world.Allreduce, MPI.IN_PLACE, x, MPI.SUM),
        "broadcast": (world.Bcast, x, 0),
        "reduce": (world.Reduce, *((x, None) if world.rank else (MPI.IN_PLACE, x)), MPI.SUM, 0),
        "reduce_scatter": (world.Reduce_scatter_block, x, out, MPI.SUM)
        if even else (world.Reduce_scatter, x, out, counts, MPI.SUM),
        "allgather": (world.Allgather, x, out) if even else (world.Allgatherv, x, uneven),
    }  # fmt: skip
    function, *arguments = calls[message.collective]
    return partial(function, *arguments)


def plain_copy(message: Message) -> Call:
    """As many bytes as the message has, from and to this rank's own memory; from the input where it has them all."""
    source, target = (memoryview(bytearray(b"\1") * message.nbytes) for _ in range(2))
    if message.x.nbytes == message.nbytes:
        source = memoryview(raw(message.x))
    return partial(target.__setitem__, slice(None), source)


class Rank:
    """A rank's part in a launch, which is told by JSON what to do."""

    def __init__(self, told: Mapping[str, Any]):
        import torch
        from mpi4py import MPI

        import collectives
        from collectives.selection import load

        torch.set_num_threads(1)
        self.told, self.world = told, MPI.COMM_WORLD
        self.start = Start.among(self.world)
        self.comms = {"treering": collectives.Communicator(timeout=DEADLINE)}
        here = self.comms["treering"].topology.fingerprint
        for table in (each for each in map(load, told["tables"]) if each.topology.fingerprint == here):
            self.comms["tuned"] = collectives.Communicator(table=table, timeout=DEADLINE)

    def work(self) -> None:
        """Time all cases; rank 0 writes what was found."""
        from tuner.contenders import Gloo

        who, cases = (self.world.rank, self.world.size), [tuple(each) for each in self.told["cases"]]
        found = [self.case(Message(each, *who), self.makers) for each in cases]
        gloo = Gloo(self.world)  # last: its threads disturb what is timed beside it
        for each, case in zip(cases, found, strict=True):
            if case["collective"] == "allreduce":
                apart = self.case(Message(each, *who), lambda m: {"gloo": lambda: partial(gloo.dist.all_reduce, m.x)})
                case["times"] |= apart["times"]
                case["faults"] |= apart["faults"]
        gloo.close()
        if self.world.rank == 0:
            content = {"version": launch.library().version, "cases": found}
            Path(self.told["into"]).write_text(json.dumps(content), encoding="utf-8")
        for comm in self.comms.values():
            comm.close()

    def makers(self, message: Message) -> dict[str, Callable[[], Call]]:
        """What makes each contender's call."""
        from tuner.contenders import native_lacks

        out = {} if message.out is None else {"out": message.out}
        made: dict[str, Callable[[], Call]] = {
            name: partial(comm.plan, message.collective, message.x, **out) for name, comm in self.comms.items()
        }
        if native_lacks(message.dtype, "sum", message.collective) is None:
            made["library"] = partial(native, message, self.world)
        made["copy"] = partial(plain_copy, message)
        if message.collective == "allreduce":
            made["update"] = lambda: partial(message.x.add_, 1)
        return made

    def case(self, message: Message, makers: Callable[[Message], Mapping[str, Callable[[], Call]]]) -> dict[str, Any]:
        """Check, time, check again. Microseconds of each contender that is right, the largest over ranks."""
        from tuner.space import candidate

        made, calls = makers(message), dict[str, Call]()
        faults: dict[str, str] = {}

        def make(name: str) -> None:
            calls[name] = made[name]()

        def check(name: str) -> None:
            if name not in ("copy", "update") and message.is_wrong(calls[name]):
                raise ArithmeticError("its result is wrong")

        for step in (make, check, check):
            faults |= self.agreed(step, [name for name in made if name not in faults])
        calls = {name: call for name, call in calls.items() if name not in faults}
        began = time.monotonic()
        self.take_turns(message, calls, LOOKS)
        fit = self.world.bcast(int(LOOKS * self.told["seconds"] / (time.monotonic() - began)))
        times, skew = self.take_turns(message, calls, max(LEAST, min(MOST, fit)))
        faults |= self.agreed(check, list(calls))
        chosen = {name: calls[name].choice for name in calls if name in self.comms}  # type: ignore[attr-defined]
        return {
            "collective": message.collective, "dtype": message.dtype, "bytes": message.nbytes, "faults": faults,
            "times": {name: us for name, us in times.items() if name not in faults}, "start_skew_ns": skew,
            "choices": {name: str(candidate(each.algorithm, each.params)) for name, each in chosen.items()},
        }  # fmt: skip

    def agreed(self, step: Callable[[str], None], names: Sequence[str]) -> dict[str, str]:
        """Faults that a step has for some of the names on any rank, the same on all."""
        faults = {}
        for name in names:
            try:
                step(name)
            except Exception as error:  # noqa: BLE001 - a contender's failure is a result, whatever it is
                faults[name] = f"rank {self.world.rank}: {type(error).__name__}: {error}"
        return {name: said[name] for said in self.world.allgather(faults) for name in said}

    def take_turns(
        self, message: Message, calls: Mapping[str, Call], repetitions: int
    ) -> tuple[dict[str, list[float]], float]:
        """Microseconds of each call, the largest over ranks, by repetition; nanoseconds between the ranks' starts.

        A call may have memory of its own: then it has a `write` for that, and `call`, what is timed.
        """
        from mpi4py import MPI

        names, start, now = list(calls), self.start, time.perf_counter_ns
        writes = [getattr(calls[name], "write", message.write) for name in names]
        timed = [getattr(calls[name], "call", calls[name]) for name in names]
        width, order = len(names), random.Random(message.nbytes)
        took, first = (array("q", bytes(8 * width * repetitions)) for _ in range(2))
        gc.disable()
        for block in range(repetitions):
            for place in order.sample(range(width), width):
                write, call, at = writes[place], timed[place], block * width + place
                write()
                begin = start()
                call()
                took[at] = now() - begin
                first[at] = begin
        gc.enable()
        last = array("q", first)
        for each, largest in ((took, MPI.MAX), (first, MPI.MIN), (last, MPI.MAX)):
            self.world.Allreduce(MPI.IN_PLACE, [each, MPI.INT64_T], largest)
        apart = sorted(b - a for a, b in zip(first, last, strict=True))
        times = {name: [ns / 1e3 for ns in took[place::width]] for place, name in enumerate(names)}
        return times, apart[len(apart) // 2] if apart else 0.0


def rank_main(told_in: Path) -> int:
    """Start ranks by this interpreter's library; in a rank, do what the file says."""
    told = json.loads(told_in.read_text(encoding="utf-8"))
    if launch.announced() is None:
        ranks = launch.command(told["ranks"], ["-m", "benchmarks.peers", "--rank", str(told_in)])
        os.execve(ranks.command[0], ranks.command, {**os.environ, **ranks.environment})
    signal.alarm(int(told["limit"]) + 10)  # ends a rank that nobody else is left to end
    Rank(told).work()
    return 0


# ---------------------------------------------------------------- the command
def finished(program: Sequence[str], limit: float, said_in: Path) -> None:
    """Run a program for at most so many seconds. ChildProcessError, with its last words, where it fails."""
    unset = ("TREERING_TABLE", "TREERING_ALGORITHM")  # what treering chooses by itself is measured
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    with said_in.open("w") as said:
        try:
            done = subprocess.run(program, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=said,
                                  stderr=subprocess.STDOUT, timeout=limit, check=False)  # fmt: skip
            status: object = done.returncode
        except subprocess.TimeoutExpired:
            status = f"killed after {limit:.0f} s"
    if status != 0:
        words = said_in.read_text(errors="replace").splitlines()[-20:]
        raise ChildProcessError("\n".join([f"{' '.join(program)}: exit status {status}", *words]))


def launched(library: str, told: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What the ranks of one launch found, with the library's name."""
    into, told_in = folder / "found.json", folder / "told.json"
    told_in.write_text(json.dumps({**told, "into": str(into)}), encoding="utf-8")
    program = [PYTHON.format(library), "-m", "benchmarks.peers", "--rank", str(told_in)]
    finished(program, told["limit"], folder / "said.txt")
    return {"library": library, **json.loads(into.read_text(encoding="utf-8"))}


def tune(library: str, options: argparse.Namespace, folder: Path) -> str:
    """A table of `treering tune` for this library and these calls."""
    table, sizes = folder / f"{library}.json", ",".join(map(str, options.sizes))
    for collective in options.collectives:
        for dtype in options.dtypes:
            print(f"tuning {collective} of {dtype} on {library}", file=sys.stderr, flush=True)
            call = ["--collective", collective, "--dtype", dtype, "--sizes", sizes]
            how = ["-n", str(options.n), "--budget", f"{options.tune}s", "--output", str(table)]
            program = [PYTHON.format(library), "-m", "tuner.cli", "tune", *call, *how]
            finished(program, 10 * options.tune + 300, folder / "said.txt")
    return str(table)


def names(allowed: Sequence[str], text: str) -> list[str]:
    """A list of names, for argparse."""
    found = [name.strip() for name in text.split(",")]
    if unknown := [name for name in found if name not in allowed]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(allowed)}")
    return found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # fmt: off
    parser.add_argument("-n", type=int, default=2, help="ranks (default: %(default)s)")
    parser.add_argument("--sizes", type=parse_sizes, default="8:64M", help="bytes of a message (default: %(default)s)")
    parser.add_argument("--collectives", type=partial(names, COLLECTIVES), default="allreduce",
                        help=", ".join(COLLECTIVES))
    parser.add_argument("--dtypes", type=partial(names, list(ITEMSIZE)), default="float32", help=", ".join(ITEMSIZE))
    parser.add_argument("--libraries", type=partial(names, LIBRARIES), default=",".join(LIBRARIES),
                        help="of those that have an environment (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="for a size in a launch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="launches of each library (default: %(default)s)")
    parser.add_argument("--table", action="append", default=[], type=os.path.abspath, metavar="FILE",
                        help="time its choices too, where it was tuned for these ranks and this library; repeatable")
    parser.add_argument("--tune", type=parse_duration, metavar="SECONDS",
                        help="tune so long for each collective, dtype and library, and time the tables' choices too")
    # fmt: on
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, and the machine, there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them there")
    options = parser.parse_args()
    if any(size % ITEMSIZE[dtype] for size in options.sizes for dtype in options.dtypes):
        parser.error("--sizes: each must be a whole number of elements of every dtype")
    return options


def main() -> int:
    if sys.argv[1:2] == ["--rank"]:
        return rank_main(Path(sys.argv[2]))
    options = parsed()
    libraries = [name for name in options.libraries if Path(PYTHON.format(name)).with_name("mpiexec").exists()]
    for name in options.libraries:
        if name not in libraries:
            print(f"without {name}, which has no environment; make it: make {name}", file=sys.stderr)
    cases = [(name, dtype, size) for name in options.collectives for dtype in options.dtypes for size in options.sizes]
    told = {"ranks": options.n, "seconds": options.seconds, "cases": cases, "tables": options.table,
            "limit": 120 + len(cases) * (5 * options.seconds + 10)}  # fmt: skip
    context = report.machine() | {"ranks": options.n, "seconds": options.seconds, "rounds": options.rounds}
    launches, failed, order = [], list[str](), random.Random(len(cases))
    with tempfile.TemporaryDirectory(prefix="treering-peers-") as folder:
        try:
            for name in libraries if options.tune else ():
                told["tables"].append(tune(name, options, Path(folder)))
            for number in range(options.rounds):
                for name in order.sample(libraries, len(libraries)):
                    print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr, flush=True)
                    launches.append(launched(name, told, Path(folder)))
        except ChildProcessError as error:  # what was found before counts
            failed.append(str(error))
    context["libraries"] = {each["library"]: each["version"] for each in launches}
    return report.give(context, launches, failed, options.json, options.plot)


if __name__ == "__main__":
    sys.exit(main())
