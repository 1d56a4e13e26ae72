"""Where ranks are to run: named hosts, a file of them, or what Slurm has allocated; and whether the hosts answer."""

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from collectives.errors import LaunchError

PATIENCE_SECONDS = 20  # for a host to answer, before anything is started
SSH = ("ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={PATIENCE_SECONDS // 2}")
SAID = 200  # characters of a host's complaint that are shown
PMI = {"Open MPI": "pmix", "MPICH": "pmi2", "Intel MPI": "pmi2"}  # what each library understands of srun's kinds
INTERACTIVE_STEP = str(2**32 - 6)  # Slurm's number for the shell that salloc opens on a node: no rank of ours


@dataclass(frozen=True)
class Host:
    name: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.name}:{self.ranks}"


@dataclass(frozen=True)
class Hosts:
    """Hosts in the order of the ranks. agent: a program that is called as ssh is, with a host and a command."""

    hosts: tuple[Host, ...]
    agent: str | None = None

    @property
    def ranks(self) -> int:
        return sum(host.ranks for host in self.hosts)

    def __str__(self) -> str:
        return ",".join(map(str, self.hosts))

    def reach(self, patience: float = PATIENCE_SECONDS) -> None:
        """LaunchError that names the hosts that do not answer, or refuse, and the ranks that they would have had.

        Launchers wait for such a host for minutes, or for ever, and some do not say for which.
        """
        here, agent, first = socket.gethostname(), [self.agent] if self.agent else list(SSH), 0
        asked: dict[str, list[range]] = {}
        for host in self.hosts:
            asked.setdefault(host.name, []).append(range(first, first + host.ranks))
            first += host.ranks
        others = [name for name in asked if name not in (here, "localhost")]
        with ThreadPoolExecutor(max(1, min(32, len(others)))) as pool:
            wrong = list(pool.map(lambda name: complaint([*agent, name, "true"], patience), others))
        lost = [
            f"{name} ({', '.join(map(ranks_of, asked[name]))}) {said}"
            for name, said in zip(others, wrong, strict=True)
            if said
        ]
        if lost:
            mend = f"try by hand: {' '.join(agent)} {others[next(i for i, said in enumerate(wrong) if said)]} true"
            raise LaunchError(f"no ranks were started, since not all hosts can be reached: {'; '.join(lost)}; {mend}")


def ranks_of(ranks: range) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


def complaint(command: Sequence[str], patience: float) -> str:
    """What is wrong with a host that is asked to do nothing, or ""."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=patience, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return f"does not answer within {patience:g} s"
    except OSError as error:
        return f"cannot be asked: {command[0]}: {error.strerror}"
    said = " ".join((done.stderr or done.stdout).split())[-SAID:]
    return f"answers with exit status {done.returncode}{f': {said}' if said else ''}" if done.returncode else ""


def parse(text: str) -> tuple[Host, ...]:
    """h1:2,h2:2, or h1,h2 with a rank each. ValueError says what is wrong."""
    return tuple(one(entry) for entry in text.split(","))


def one(entry: str) -> Host:
    name, colon, number = entry.strip().partition(":")
    if not name or (colon and not (number.isdecimal() and int(number) > 0)):
        raise ValueError(f"{entry!r} is not HOST or HOST:RANKS; write h1:2,h2:2")
    return Host(name, int(number) if colon else 1)


def read(path: str | os.PathLike[str]) -> tuple[Host, ...]:
    """A host a line, as MPI libraries write them: `h1`, `h1:2` or `h1 slots=2`; # begins a comment. ValueError."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or 'not a text file'}") from error
    found = []
    for number, line in enumerate(lines, 1):
        name, *rest = line.partition("#")[0].split() or [""]
        slots = [word.partition("=")[2] for word in rest if word.startswith("slots=")]
        unknown = [word for word in rest if not word.startswith(("slots=", "max_slots=", "max-slots="))]
        try:
            if unknown or (slots and ":" in name):
                raise ValueError(f"{line.strip()!r} is not HOST, HOST:RANKS or HOST slots=RANKS")
            if name:
                found.append(one(f"{name}:{slots[0]}" if slots else name))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if not found:
        raise ValueError(f"{path}: names no host")
    return tuple(found)


# ---------------------------------------------------------------- Slurm
def in_allocation(environment: Mapping[str, str]) -> bool:
    """Whether this process may start ranks in an allocation of Slurm's, and is no rank itself."""
    step = environment.get("SLURM_STEP_ID")
    return "SLURM_JOB_ID" in environment and (step is None or step == INTERACTIVE_STEP)


def allocated_ranks(environment: Mapping[str, str]) -> int | None:
    """How many tasks the allocation was asked for, where somebody said so."""
    told = environment.get("SLURM_NTASKS", "")
    return int(told) if in_allocation(environment) and told.isdecimal() and int(told) > 0 else None


def srun(library: str, ranks: int, environment: Mapping[str, str]) -> list[str] | None:
    """The start of a command line that runs so many ranks in the allocation by srun.

    None where there is no allocation or no srun, or where srun lacks the kind of PMI that the MPI library understands:
    the library's own mpiexec knows Slurm then.
    """
    path = shutil.which("srun", path=environment.get("PATH", os.defpath))
    if path is None or not in_allocation(environment) or library not in PMI:
        return None
    if library == "Intel MPI" and "I_MPI_PMI_LIBRARY" not in environment:
        return None  # it speaks srun's PMI only by Slurm's own library, and waits for ever without
    try:
        kinds = subprocess.run([path, "--mpi=list"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if PMI[library] not in (kinds.stdout + kinds.stderr).replace(":", " ").replace(",", " ").split():
        return None
    return [path, "-n", str(ranks), f"--mpi={PMI[library]}"]
