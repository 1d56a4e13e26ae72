"""Jobs in which a rank goes wrong, one after the other, by a seed:

    python -m tests.programs.inject --kills 200 --stops 200 [--delays N --raises N --drops N] [--seed S] [--mpi mpich]

Every algorithm in turn, on 2 to 4 ranks, over node kernels, FIFOs and symmetric memory; with --mpi NAME under that
library's launcher, and over its messages too. Without it ranks are forked and meet in a folder. A job must end within
its deadline + 2 s of the fault, not zero unless the fault is a delay, and no rank may ever see a wrong value.

Prints a line of JSON: how many faults struck, what was wrong or late, and the seconds from fault to the last process's
end. With --json FILE the same command goes on where an earlier one ended, and what all of them found stands there;
with --within SECONDS it begins no job after that time.
"""

import argparse
import json
import os
import pickle
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import collectives
from collectives.algorithms import every
from collectives.native.library import kernel, library
from tests import launch
from tests.programs.inject_worker import CALLS, DEADLINE, Job, work

FAULTS = ("kill", "stop", "delay", "raise", "drop")
LIMIT = 30.0  # seconds, after which a job hangs
ALLOWED = DEADLINE + 2.0
AT_ONCE, LAUNCHES_AT_ONCE = 3, 2  # jobs


class Folder:
    """A store of files, as Communicator.from_store wants one."""

    def __init__(self, path: str):
        self.path = Path(path)

    def _file(self, key: str) -> Path:
        return self.path / key.replace("/", "+")

    def set(self, key: str, value: bytes) -> None:
        new = self._file(f"{key}.{os.getpid()}.new")
        new.write_bytes(value)
        new.rename(self._file(key))

    def get(self, key: str) -> bytes:
        return self._file(key).read_bytes()

    def check(self, keys: list[str]) -> bool:
        return all(self._file(key).exists() for key in keys)

    def delete_key(self, key: str) -> None:
        self._file(key).unlink(missing_ok=True)


def draw(random: Random, number: int, fault: str, mpi: bool) -> Job:
    """The next job: algorithms take turns, all else is drawn."""
    fits = {
        (a.collective, a.name): sizes
        for a in every()
        if (sizes := [n for n in (2, 3, 4) if not a.refusal(n, (tuple(range(n)),))]) and not a.regular
    }
    collective, algorithm = list(fits)[number % len(fits)]
    size = random.choice(fits[collective, algorithm])
    counts: list[int] = []
    for _ in range(
        CALLS
    ):  # none twice in a row: calls that look alike would be taken for one another where one is left out
        counts.append(random.choice([n for n in (1, 7, 1000, 5000, 60_000, 300_000) if n not in counts[-1:]]))
    environment = {"TREERING_KERNELS": "off"} if random.random() < 0.4 else {}
    if mpi and random.random() < 0.7:
        environment = random.choice(({"TREERING_LINKS": "mpi"}, {"TREERING_RANKS_PER_NODE": "2"}))
    by_time = fault != "drop" and random.random() < 0.3
    step = random.choice((0, 1, 1, 2, 3, 5)) if fault != "drop" or "TREERING_LINKS" in environment else 0
    return Job(
        number, size, fault, random.randrange(size), random.randrange(3, CALLS - 2), step,
        random.randrange(1, 2000) if by_time else 0, collective, algorithm, tuple(counts),
        not environment and random.random() < 0.3, environment,
    )  # fmt: skip


class Running:
    """A job under way: its processes, and the folder where they meet and log."""

    def __init__(self, job: Job):
        self.job, self.began = job, time.monotonic()
        self.folder = Path(tempfile.mkdtemp(prefix="treering-inject-"))  # its end is the parent's business alone
        Path(self.folder, "store").mkdir()
        self.log = Path(self.folder, "struck")
        self.ranks: dict[int, int] = {}
        self.statuses: dict[int, int] = {}

    def start(self) -> "int | None":
        """Fork the ranks; in a rank, its number."""
        for rank in range(self.job.size):
            pid = os.fork()
            if pid == 0:
                for stream in (1, 2):
                    os.dup2(os.open(f"{self.folder}/{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream)
                return rank
            self.ranks[pid] = rank
        return None

    def ended(self) -> bool:
        for pid in list(self.ranks):
            with suppress(ChildProcessError):
                if (found := os.waitpid(pid, os.WNOHANG))[0]:
                    self.statuses[self.ranks.pop(pid)] = os.waitstatus_to_exitcode(found[1])
        return not self.ranks

    @property
    def ended_without_victim(self) -> bool:
        """Whether all others have come to their end, well, and the victim has been stopped on its way there."""
        left = list(self.ranks.values())
        return self.job.fault == "stop" and left == [self.job.victim] and not any(self.statuses.values())

    @property
    def said(self) -> str:
        return "".join(Path(self.folder, str(rank)).read_text() for rank in range(self.job.size))


class Tally:
    """What came of the jobs. found: what an earlier tally says came of its own, on which this one goes on."""

    def __init__(self, found: "dict[str, Any] | None" = None) -> None:
        found = found or {"not_struck": 0, "seconds": {}, "wrong": [], "late": []}
        self.missed: int = found["not_struck"]
        self.seconds: dict[str, list[float]] = {fault: found["seconds"].get(fault, []) for fault in FAULTS}
        self.wrong: list[str] = found["wrong"]
        self.late: list[str] = found["late"]  # which a busy machine makes

    def left(self, wanted: dict[str, int], running: Iterable[str]) -> list[str]:
        """Faults that are wanted still, each so many times; those of running jobs are taken to strike."""
        under_way = Counter(running)
        return [fault for fault, n in wanted.items() for _ in range(n - len(self.seconds[fault]) - under_way[fault])]

    def add(self, job: Job, log: Path, said: str, zero: bool, hangs: bool) -> None:
        ended = time.monotonic()
        at = log.read_text() if log.exists() else ""
        if hangs:
            self.wrong.append(f"hangs: {job}: {said[-2000:]}")
        if "WRONG" in said:
            self.wrong.append(f"a wrong value: {said[said.index('WRONG') :][:1000]}")
        if not at:
            self.missed += 1
            if not zero:
                self.wrong.append(f"nothing went wrong, and not zero: {job}: {said[-2000:]}")
            return
        taken = ended - int(at) / 1e9
        self.seconds[job.fault].append(round(taken, 2))
        if zero != (job.fault == "delay"):
            self.wrong.append(f"ended {'well' if zero else 'badly'} after a {job.fault}: {job}: {said[-2000:]}")
        if taken > ALLOWED and job.fault != "delay":
            self.late.append(f"took {taken:.1f} s: {job}: {said[-2000:]}")

    def figures(self) -> dict[str, Any]:
        seconds = {fault: all_ for fault, all_ in self.seconds.items() if all_}
        times = {
            fault: {"median": round(statistics.median(all_), 2), "most": max(all_)}
            for fault, all_ in seconds.items()
            if fault != "delay"
        }
        return {
            "deadline": DEADLINE, "struck": {fault: len(all_) for fault, all_ in seconds.items()},
            "not_struck": self.missed, "wrong": self.wrong, "late": self.late, "seconds_to_exit": times,
        }  # fmt: skip

    @property
    def number(self) -> int:
        """Of the next job."""
        return self.missed + sum(map(len, self.seconds.values()))


def forked(wanted: dict[str, int], seed: int, tally: Tally, until: float) -> "tuple[Running, int] | None":
    """Jobs of forked ranks, some at once; in a rank, what it has to do."""
    warm()
    running: list[Running] = []
    while True:
        left = tally.left(wanted, (job.job.fault for job in running))
        if not running and (not left or time.monotonic() > until):
            return None
        if len(running) < AT_ONCE and left and time.monotonic() < until:
            number = tally.number + len(running)
            random = Random(f"{seed} {number}")
            job = Running(draw(random, number, random.choice(left), mpi=False))
            rank = job.start()
            if rank is not None:
                return job, rank
            running.append(job)
        for job in list(running):
            late = job.ended_without_victim
            if late:  # a stop
                job.log.unlink(missing_ok=True)
            hangs = time.monotonic() - job.began > LIMIT
            if hangs or late:
                for pid in job.ranks:
                    os.kill(pid, signal.SIGKILL)
            if job.ended() or hangs or late:
                tally.add(job.job, job.log, job.said, late or not any(job.statuses.values()), hangs)
                running.remove(job)
                shutil.rmtree(job.folder)
        time.sleep(0.002)


def launched(mpi: str, wanted: dict[str, int], seed: int, tally: Tally, until: float) -> None:
    """Jobs under an MPI library's launcher, some at once."""
    library = launch.find(mpi)
    if library is None:
        raise LookupError(f"no environment for {mpi}: run `make {mpi}`")
    warm()  # or the first launches would take longer than a job may
    with ThreadPoolExecutor(LAUNCHES_AT_ONCE) as pool:
        running: dict[Future[None], str] = {}
        numbers = count(tally.number)
        while (left := tally.left(wanted, running.values())) and time.monotonic() < until:
            number = next(numbers)
            random = Random(f"{seed} {mpi} {number}")
            job = draw(random, number, random.choice(left), mpi=True)
            running[pool.submit(launched_job, library, job, tally)] = job.fault
            while len(running) == LAUNCHES_AT_ONCE or (running and not tally.left(wanted, running.values())):
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    running.pop(done)
                    done.result()


def launched_job(library: launch.Library, job: Job, tally: Tally) -> None:
    with tempfile.TemporaryDirectory(prefix="treering-inject-") as folder:
        Path(folder, "job").write_bytes(pickle.dumps(job))
        command = library.command(job.size, ["-m", "tests.programs.inject", "--rank-of", folder])
        hangs, said, status = False, "", 1
        try:
            done = launch.run_command(command, library.environment(job.environment), timeout=LIMIT)
            said, status = done.stdout + done.stderr, done.returncode
        except launch.Hang as hang:
            hangs, said = True, str(hang)
        tally.add(job, Path(folder, "struck"), said, status == 0, hangs)


def warm() -> None:
    """Load what ranks need, so that forked ones have it."""
    library()
    for each in (("int32", "sum"), ("uint8", "or"), ("int32", "sum", True)):
        kernel(*each)


def rank_of(job: Job, folder: str | Path, rank: int | None) -> None:
    """A rank of a job, forked, or else a launcher's."""
    os.environ |= job.environment
    log = os.open(f"{folder}/struck", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if rank is None:
        warm()
        work(collectives.Communicator(timeout=DEADLINE), job, log)
    else:
        store = Folder(f"{folder}/store")
        comm = collectives.Communicator.from_store(store, rank, job.size, timeout=DEADLINE)
        work(comm, job, log)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for fault in FAULTS:
        parser.add_argument(f"--{fault}s", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mpi", choices=launch.LIBRARIES)
    parser.add_argument("--within", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        rank_of(pickle.loads(Path(options.rank_of, "job").read_bytes()), options.rank_of, None)
        return 0
    wanted = {fault: getattr(options, f"{fault}s") for fault in FAULTS}
    found = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    where, until = options.mpi or "forked", time.monotonic() + options.within
    tally = Tally(found.get(where))
    if options.mpi:
        launched(options.mpi, wanted, options.seed, tally, until)
    elif (mine := forked(wanted, options.seed, tally, until)) is not None:
        job, rank = mine
        rank_of(job.job, job.folder, rank)
        return 0
    figures = tally.figures()
    if options.json:
        ways = " ".join(f"--{fault}s {n}" for fault, n in wanted.items() if n)
        mpi = f" --mpi {options.mpi}" if options.mpi else ""
        command = f"python -m tests.programs.inject {ways}{mpi} --seed {options.seed}"
        found[where] = {"command": command, **figures, "seconds": tally.seconds}
        text = json.dumps(found, indent=1)
        options.json.write_text(re.sub(r"\[[^][{}\"]*\]", lambda list_: " ".join(list_[0].split()), text) + "\n")
    print(json.dumps({"seed": options.seed, **figures}), flush=True)
    return 1 if figures["wrong"] or figures["late"] else 0


if __name__ == "__main__":
    sys.exit(main())
