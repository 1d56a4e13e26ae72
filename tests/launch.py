"""Start ranks under an MPI library's own mpiexec, and leave nothing running whatever happens.

An MPI library is one of the environments that the Makefile makes (`build/env/mpich` and so on); where there is none,
the library of the interpreter that runs the tests serves under its name. Every process of a launch carries a mark in
its environment, by which the launch finds proxies and ranks that have left its session.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("mpich", "openmpi", "impi")
STORE = "store"  # instead of a library's name: ranks that are started without one, and meet in a store
SHARED_MEMORY = Path("/dev/shm")
MARK = "TREERING_TEST_LAUNCH"
STACKS = "TREERING_TEST_STACKS"
# Left by an MPI library in a process that already is a rank: a launch from there would be refused or misled.
INHERITED = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "PMI2_", "HYDRA_", "HYDI_", "MPI_LOCAL", "I_MPI_", "MPIR_", "TREERING_")
GRACE = 5.0  # seconds that ranks have to end after their launcher has


class Hang(AssertionError):
    """A launch passed its time limit and was killed; the message holds what it had printed and where its ranks were."""


@dataclass(frozen=True)
class Library:
    """An MPI library to launch with: the interpreter whose mpi4py uses it, and its mpiexec."""

    name: str
    python: str
    mpiexec: str

    def command(self, n: int, program: list[str]) -> list[str]:
        if self.name == STORE:
            return [self.python, "-m", "tests.programs.spawn", str(n), *program]
        flags = ["--oversubscribe"] if self.name == "openmpi" else []
        return [self.mpiexec, *flags, "-n", str(n), self.python, *program]

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(INHERITED)}
        env["PATH"] = os.pathsep.join([str(Path(self.mpiexec).parent), env.get("PATH", os.defpath)])
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests" / "start"), str(ROOT)])
        env["PYTHONFAULTHANDLER"] = "1"
        if self.name == "openmpi":
            env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return env | dict(extra or {})


@functools.cache
def own_library() -> Library | None:
    """The library of the interpreter that runs the tests, if it has one with an mpiexec beside it."""
    mpiexec = Path(sys.executable).parent / "mpiexec"
    if not mpiexec.exists():
        return None
    probe = "from mpi4py import MPI; print(MPI.Get_library_version())"
    version = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60).stdout
    for name, word in zip(LIBRARIES, ("MPICH", "Open MPI", "Intel(R) MPI"), strict=True):
        if version.startswith(word):
            return Library(name, sys.executable, str(mpiexec))
    return None


@functools.cache
def find(name: str) -> Library | None:
    """The library called `name`, or None where it is not installed; for STORE none is needed."""
    if name == STORE:
        return Library(name, sys.executable, sys.executable)
    bin_folder = ROOT / "build" / "env" / name / "bin"
    if (bin_folder.parent / ".done").exists():
        return Library(name, str(bin_folder / "python"), str(bin_folder / "mpiexec"))
    own = own_library()
    return own if own is not None and own.name == name else None


def run(
    n: int,
    program: list[str],
    *,
    mpi: str = "mpich",
    timeout: float = 120,
    env: Mapping[str, str] | None = None,
    cwd: str | Path = ROOT,
) -> subprocess.CompletedProcess[str]:
    """Run `python *program` as `n` ranks and give back exit status and output.

    Raises `Hang` after `timeout` seconds, when every process of the launch is gone, and `LookupError` where the MPI
    library is not installed. `env` adds to the ranks' environment.
    """
    library = find(mpi)
    if library is None:
        raise LookupError(f"no environment for {mpi}: run `make {mpi}`")
    return run_command(library.command(n, program), library.environment(env), timeout=timeout, cwd=cwd)


def torchrun(
    n: int, program: list[str], *, mpi: str = STORE, timeout: float = 120, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python *program` as `n` ranks under torchrun, where there is no mpi4py unless `mpi` names its library.

    As `run` otherwise.
    """
    library = find(mpi)
    if library is None:
        raise LookupError(f"no environment for {mpi}: run `make {mpi}`")
    settings = {"OMP_NUM_THREADS": "1", **({"TREERING_TEST_NO_MPI": "1"} if mpi == STORE else {}), **(env or {})}
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    return run_command([library.python, *start, *program], library.environment(settings), timeout=timeout)


def run_command(
    command: list[str], env: Mapping[str, str], *, timeout: float = 120, cwd: str | Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run any command that may start ranks, in a session of its own; as `run` otherwise."""
    mark, before = uuid.uuid4().hex, shared_memory()
    # Files and not pipes: a process that outlives its launcher would hold a pipe open.
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        tempfile.TemporaryDirectory(prefix="treering-") as scratch,  # of the MPI library, too: it leaves files there
    ):
        stacks = Path(scratch, "stacks")
        stacks.mkdir()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={"TREERING_RUN_DIR": scratch, **env, "TMPDIR": scratch, MARK: mark, STACKS: str(stacks)},
            cwd=cwd,
            start_new_session=True,
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            where = _stacks(mark, stacks)
            _kill(process, mark)
            remove_leftovers(before)
            report = describe(command, None, text(out), text(err))
            raise Hang(f"killed after {timeout:g} s: {report}\n--- stacks\n{where}") from None
        except BaseException:
            _kill(process, mark)
            raise
        survivors = _wait_for_end(mark, GRACE)
        _kill(process, mark)
        remove_leftovers(before)
        note = f"\n{survivors} processes outlived their launcher by {GRACE:g} s and were killed\n" if survivors else ""
        return subprocess.CompletedProcess(command, process.returncode, text(out), text(err) + note)


def text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def describe(command: list[str], status: int | None, out: str, err: str, limit: int = 20_000) -> str:
    """What a person needs to see of a launch that went wrong: command, exit status, the ends of both outputs."""
    ended = "" if status is None else f"exit status {status}: "
    return f"{ended}{' '.join(command)}\n--- stdout\n{out[-limit:]}\n--- stderr\n{err[-limit:]}"


def marked(mark: str) -> Iterator[int]:
    """Ids of living processes whose environment carries the mark."""
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # ended meanwhile, or not ours to read; a zombie's environment is empty
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    yield int(folder.name)


def _wait_for_end(mark: str, seconds: float) -> int:
    """How many marked processes still live after at most `seconds`."""
    deadline = time.monotonic() + seconds
    while (alive := len(list(marked(mark)))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return alive


def _stacks(mark: str, folder: Path) -> str:
    """The Python stacks of the launch's ranks, which `start/sitecustomize.py` writes on SIGUSR2."""
    ranks = [int(entry.name) for entry in folder.iterdir()]
    for pid in set(ranks) & set(marked(mark)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)
    time.sleep(0.5)
    return "\n".join((folder / str(pid)).read_text() for pid in sorted(ranks))


def _kill(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kill the session, and whoever left it, until nobody is left."""
    if process.poll() is None:  # once reaped, its id may belong to somebody else
        os.killpg(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while (pids := list(marked(mark))) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    process.wait()


def shared_memory() -> set[str]:
    """Names of the files in shared memory."""
    return {entry.name for entry in SHARED_MEMORY.iterdir()}


def held(names: set[str]) -> set[str]:
    """Those of the files in shared memory that a living process has mapped or open, under whatever name it did so.

    A folder is held as long as a file in it is. (A named semaphore is made, and mapped, under another name than it is
    found by.)
    """
    wanted: dict[int, set[str]] = {}
    for name in names:
        with suppress(OSError):  # gone meanwhile
            path = SHARED_MEMORY / name
            for file in path.iterdir() if path.is_dir() else [path]:
                wanted.setdefault(file.stat().st_ino, set()).add(name)
    found: set[str] = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            for inode in in_shared_memory(folder):
                found |= wanted.get(inode, set())
    return found


def in_shared_memory(process: Path) -> Iterator[int]:
    """The files in shared memory, by number, that a process has mapped or open; `process` is its folder in /proc."""
    with suppress(OSError):  # ended meanwhile, or not ours to read
        for line in (process / "maps").read_text().splitlines():
            _, _, _, _, inode, *path = line.split(maxsplit=5)
            if path and path[0].startswith(str(SHARED_MEMORY)):
                yield int(inode)
        for fd in (process / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if str(fd.readlink()).startswith(str(SHARED_MEMORY)):
                    yield fd.stat().st_ino


def remove_leftovers(before: set[str]) -> None:
    """Remove what an MPI library leaves in shared memory when its ranks are killed. What is ours stays, to be seen."""
    new = {name for name in shared_memory() - before if not name.startswith("treering")}
    for name in new - held(new) if new else ():
        with suppress(OSError):
            (SHARED_MEMORY / name).unlink()
