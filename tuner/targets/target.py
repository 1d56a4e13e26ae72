"""What has to be known of an MPI library to tune its own collectives: its algorithms, its knobs, its rules' file."""

import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from collectives.errors import LaunchError
from collectives.tables.table import Rule, Table
from tuner import launch
from tuner.space import Candidate

DEFAULT = Candidate("default")  # whatever the library itself decides
COLLECTIVES = ("allreduce", "broadcast", "reduce")  # whose sizes libraries, and this, count alike
LIBMPI = "from mpi4py import MPI; print({line.split()[-1] for line in open('/proc/self/maps') if '/libmpi.so' in line})"


class Target(ABC):
    """One MPI library. It is the one that mpi4py uses here: `check` says so where it is another."""

    name: ClassVar[str]  # as --target and --to take it
    library: ClassVar[str]  # as tuner.launch names it

    def check(self) -> None:
        """LaunchError where mpi4py uses another library."""
        found = launch.library()
        if found.name != self.library:
            raise LaunchError(
                f"mpi4py uses {found.version} here, not {self.library}; use a Python whose mpi4py does, or "
                "name the library that is here"
            )

    @abstractmethod
    def candidates(self, collective: str) -> list[Candidate]:
        """What can be forced, as the installed library says. LaunchError where it has no such knob."""

    @abstractmethod
    def forced(self, collective: str, candidate: Candidate) -> dict[str, str]:
        """The environment in which it does that, whatever the message."""

    @abstractmethod
    def files(self, table: Table) -> dict[str, str]:
        """What to write: {suffix of the file's name: text}."""

    @abstractmethod
    def using(self, files: Mapping[str, Path]) -> dict[str, str]:
        """The environment in which a program follows these files."""

    @abstractmethod
    def refused(self, stderr: str) -> str | None:
        """What the library says where it does not take a setting and goes on."""


def intervals(table: Table, collective: str) -> list[Rule]:
    """The rules of one collective, by size."""
    return sorted((rule for rule in table.rules if rule.collective == collective), key=lambda rule: rule.min_bytes)


def tuned(table: Table) -> list[str]:
    return [name for name in COLLECTIVES if intervals(table, name)]


def ranks_of(table: Table) -> int:
    return sum(table.topology.ranks_per_node)


def tool(name: str, *arguments: str, as_rank: bool = False) -> str:
    """What a tool of the library prints that lies beside its mpiexec."""
    mpiexec = launch.launcher().path
    path = Path(mpiexec).parent / name
    command = [*([mpiexec, "-n", "1"] if as_rank else []), str(path), *arguments]
    if not path.exists():
        raise LaunchError(f"{path} is missing, which says what {launch.library().version} can do; install it whole")
    return output(command)


def libmpi() -> Path:
    """The shared library itself."""
    found = output([sys.executable, "-c", LIBMPI])
    names = sorted(part for part in found.strip().strip("{}").replace("'", "").split(", ") if part)
    if not names:
        raise LaunchError(f"{launch.library().version} is not a shared library here; its own rules cannot be read")
    return Path(names[0])


def output(command: Sequence[str]) -> str:
    environment = launch.environment_of(launch.launcher().path)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{' '.join(command)} does not answer: {error}") from None
    if done.returncode:
        raise LaunchError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout
