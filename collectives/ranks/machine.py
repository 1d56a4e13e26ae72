"""What the kernel says of this machine: its processor, sockets, NUMA domains, GPUs and network interfaces.

Nothing here raises: what cannot be read is not known, and is left out. `root` is where sysfs, procfs and so on begin.
"""

import os
import platform
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NVIDIA, AMD = "0x10de", "0x1002"
DISPLAYS = ("0x0300", "0x0302", "0x0380")  # PCI classes of GPUs
# What a process has open once a transport is in use; anything else travels by TCP.
DEVICES = {"/dev/infiniband/": "verbs", "/dev/hfi1": "omni-path", "/dev/cxi": "slingshot", "/dev/efa": "efa"}
UNBOUND = -1


@dataclass(frozen=True)
class Machine:
    """What matters of a host to those who share it.

    name: what it calls itself, which need not be unique. domain: the NUMA domain that all of this process's cores lie
    in, or UNBOUND. mbits: of the fastest network interface, each way, in Mbit/s; 0 where it does not say. switches: by
    name, from the network's core down to the one that the host hangs on; empty where nobody says.
    """

    name: str
    cpu: str
    sockets: int
    domains: int
    gpus: int
    mbits: int
    domain: int
    switches: tuple[str, ...] = ()

    @property
    def processors(self) -> str:
        """The processor, and what of it there is more of than one."""
        more = [f", {n} {what}" for n, what in ((self.sockets, "sockets"), (self.domains, "NUMA domains")) if n > 1]
        return self.cpu + "".join(more)


def look(root: Path = Path("/")) -> Machine:
    cores = os.sched_getaffinity(0)
    domains = {int(path.name[4:]): cores_of(said(path / "cpulist")) for path in numbered(root, "node")}
    mine = [number for number, held in domains.items() if cores <= held]
    packages = {said(path / "topology/physical_package_id") for path in numbered(root, "cpu")} - {"", "-1"}
    return Machine(
        socket.gethostname(),
        processor(root),
        max(1, len(packages)),
        max(1, sum(map(bool, domains.values()))),
        sum(is_gpu(path) for path in listed(root / "sys/bus/pci/devices")),
        max([0, *speeds(root)]),
        mine[0] if len(mine) == 1 else UNBOUND,
        switches(),
    )


def switches() -> tuple[str, ...]:
    """TREERING_SWITCHES, as hall.rack; else what Slurm's topology plugin says, whose last word is the host."""
    given = os.environ.get("TREERING_SWITCHES")
    words = given.split(".") if given else os.environ.get("SLURM_TOPOLOGY_ADDR", "").split(".")[:-1]
    return tuple(filter(None, words))


def processor(root: Path = Path("/")) -> str:
    """The processor's model, as the kernel names it."""
    for line in said(root / "proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return " ".join(line.split(":", 1)[1].split())
    return platform.processor() or platform.machine()


def speeds(root: Path) -> Iterator[int]:
    """Mbit/s of the interfaces that are up: InfiniBand's ports, and network cards, or virtual ones without a card."""
    for rate in (root / "sys/class/infiniband").glob("*/ports/*/rate"):
        if "ACTIVE" in said(rate.with_name("state")):
            with suppress(ValueError, IndexError):
                yield int(1000 * float(said(rate).split()[0]))
    up = [path for path in listed(root / "sys/class/net") if said(path / "operstate") == "up"]
    cards = [path for path in up if (path / "device").exists()]
    for path in cards or up:
        with suppress(ValueError):
            yield int(said(path / "speed"))


def transport(root: Path = Path("/")) -> str:
    """How this process's messages leave the host, once some have: by the devices that it has open."""
    for descriptor in listed(root / "proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(descriptor)
            for device, name in DEVICES.items():
                if target.startswith(device):
                    return name
    return "tcp"


def is_gpu(device: Path) -> bool:
    return said(device / "vendor") in (NVIDIA, AMD) and said(device / "class").startswith(DISPLAYS)


def numbered(root: Path, kind: str) -> list[Path]:
    """sysfs' folders of cores (cpu0, cpu1, ...) or of NUMA domains (node0, ...)."""
    folder = root / "sys/devices/system" / ("cpu" if kind == "cpu" else "node")
    return [path for path in listed(folder) if path.name.startswith(kind) and path.name[len(kind) :].isdecimal()]


def cores_of(ranges: str) -> set[int]:
    """0-3,8 -> {0, 1, 2, 3, 8}."""
    found: set[int] = set()
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        with suppress(ValueError):
            found |= set(range(int(first), int(last or first) + 1))
    return found


def listed(folder: Path) -> Iterable[Path]:
    with suppress(OSError):
        return sorted(folder.iterdir())
    return []


def said(file: Path) -> str:
    """What a file of the kernel's holds, or nothing."""
    with suppress(OSError, UnicodeDecodeError):
        return file.read_text().strip()
    return ""
