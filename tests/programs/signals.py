"""How soon a job is over after SIGINT or SIGTERM, to its launcher or to one of its ranks, whatever its ranks are doing:

    python -m tests.programs.signals [--mpi mpich|openmpi|impi|store] [--times 3]

Ranks wait in a blocking collective that never ends, make one after the other, or none. Without an MPI library torchrun
starts them. Prints a line of JSON: the seconds from the signal to the last process's end, whether any job ended with 0
or left processes, and what of ours is still in memory after one more start, which must be nothing.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from array import array
from pathlib import Path
from typing import Any

from collectives.flight import records
from tests import launch

RANKS, LIMIT = 3, 30.0
DOING = ("waiting", "calling", "sleeping")
SIGNALS = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM}
WHOM = ("launcher", "rank")


def rank(doing: str, folder: str) -> None:
    """One rank: it says when it is at it, and is at it until somebody ends it."""
    from tests.programs import world

    comm, x = world.communicator(timeout=60), array("f", [1] * 1000)
    comm.allreduce(x)
    Path(folder, f"{comm.rank}.new").write_text(str(os.getpid()))
    Path(folder, f"{comm.rank}.new").rename(Path(folder, str(comm.rank)))
    if doing == "sleeping" or (doing == "waiting" and comm.rank == RANKS - 1):
        time.sleep(1000)
    while True:
        comm.allreduce(x)


def command_of(library: launch.Library, program: list[str]) -> list[str]:
    """A launch of the library's; without one, torchrun's."""
    if library.name != launch.STORE:
        return library.command(RANKS, program)
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    return [library.python, *start, *program]


def strike(library: launch.Library, doing: str, number: int, whom: str) -> tuple[float, int, int]:
    """Seconds to the end of all processes, the launcher's exit status, and how many had to be killed."""
    mark, before = uuid.uuid4().hex, launch.shared_memory()
    with tempfile.TemporaryDirectory(prefix="treering-signals-") as folder:
        command = command_of(library, ["-m", "tests.programs.signals", "--rank", doing, folder])
        store = {"TREERING_TEST_STORE": f"{folder}/store"} if library.name == launch.STORE else {}
        environment = {**library.environment(), launch.MARK: mark, "TMPDIR": folder, **store}
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        process = subprocess.Popen(command, env=environment, cwd=launch.ROOT, start_new_session=True, **quiet)
        places, until = [Path(folder, str(i)) for i in range(RANKS)], time.monotonic() + LIMIT
        while not all(place.exists() for place in places):
            if time.monotonic() > until or process.poll() is not None:
                raise TimeoutError(f"ranks did not start: {command}")
            time.sleep(0.02)
        time.sleep(0.3)
        os.kill(process.pid if whom == "launcher" else int(places[1].read_text()), number)
        began = time.monotonic()
        while list(launch.marked(mark)) and time.monotonic() - began < LIMIT:
            process.poll()
            time.sleep(0.005)
        seconds, left = time.monotonic() - began, len(list(launch.marked(mark)))
        if left:
            os.killpg(process.pid, signal.SIGKILL)
        launch.remove_leftovers(before)
        return seconds, process.wait(), left


def leftovers() -> list[str]:
    """Files of ours in memory after one more start, which removes those of ended runs."""
    library = launch.find("mpich")
    assert library is not None
    program = ["-c", "import collectives; collectives.Communicator().close()"]
    quiet: dict[str, Any] = {"check": True, "capture_output": True, "timeout": LIMIT}
    subprocess.run(library.command(2, program), env=library.environment(), cwd=launch.ROOT, **quiet)
    files = [path for path in launch.SHARED_MEMORY.glob("treering*") if path.is_file()]
    return sorted(map(str, [*files, *(path for path, _ in records.found())]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpi", default="mpich", choices=(*launch.LIBRARIES, launch.STORE))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank(*options.rank)
    library = launch.find(options.mpi)
    if library is None:
        raise LookupError(f"no environment for {options.mpi}: run `make {options.mpi}`")
    cases, wrong = dict[str, list[float]](), list[str]()
    for _ in range(options.times):
        for name, number in SIGNALS.items():
            for whom in WHOM:
                for doing in DOING:
                    case = f"{name} the {whom}, {doing}"
                    seconds, status, left = strike(library, doing, number, whom)
                    cases.setdefault(case, []).append(seconds)
                    wrong += [f"{case}: {left} processes left"] * bool(left) + [f"{case}: ended with 0"] * (not status)
    left_behind = leftovers()
    most = {case: round(max(all_), 2) for case, all_ in cases.items()}
    median = round(statistics.median(each for all_ in cases.values() for each in all_), 2)
    figures = {"mpi": options.mpi, "most": most, "median": median, "wrong": wrong, "left": left_behind}
    print(json.dumps(figures), flush=True)
    return 1 if wrong or left_behind else 0


if __name__ == "__main__":
    sys.exit(main())
