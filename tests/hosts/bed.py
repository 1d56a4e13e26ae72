"""Hosts on one machine, for tests and figures: a network, a name and shared memory of its own for each.

    with Bed(["h1", "h2"], rate="1gbit") as bed:
        subprocess.run(bed.command("h1", ["ping", "-c1", "h2"]))

A bed is a tree of processes in namespaces of their own. It has no names outside: two may stand side by side, and when
this process ends, however it does, the kernel takes the bed down.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from tuner.launch import WHOLE_NAMES

HERE = Path(__file__).resolve().parent
AGENT = str(HERE / "agent.sh")
TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux"}
FOLDER = "var/tmp/bed"  # where bed.sh keeps what it knows, within the bed
SECONDS = 30  # that a bed may take to come up


class NoBed(RuntimeError):
    """This machine cannot have a bed; the message says why."""


class Bed:
    """Hosts, from entering the context to leaving it.

    addresses: what launchers call them. names: what a host calls itself, where that differs from its address.
    rate: of each host's link, each way, as tc has it; None for no limit.
    """

    def __init__(self, addresses: Sequence[str], rate: str | None = "1gbit", names: Mapping[str, str] | None = None):
        self.addresses, self.rate = list(addresses), rate
        self.names = {address: (names or {}).get(address, address) for address in addresses}
        self._inside = 0  # process 1 of the bed, as seen from outside

    def __enter__(self) -> Bed:
        path = search_path()
        if os.geteuid() != 0:
            raise NoBed("hosts in network namespaces need root")
        if missing := [tool for tool in TOOLS if shutil.which(tool, path=path) is None]:
            packages = " ".join(sorted({TOOLS[tool] for tool in missing}))
            raise NoBed(f"{', '.join(missing)} not found: apt-get install {packages}")
        apart = ["unshare", "--fork", "--kill-child", "--pid", "--mount", "--mount-proc", "--net", "--uts", "--ipc"]
        hosts = [f"{address}={name}" for address, name in self.names.items()]
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *apart, str(HERE / "bed.sh"), self.rate or "none", *hosts],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {"PATH": path}, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        said = until_ready(self._process.stdout)
        if not said.endswith("ready\n"):
            self.__exit__()
            raise NoBed(f"no network namespaces here: {said.strip() or f'nothing happened for {SECONDS} s'}")
        self._inside = int(Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text())
        return self

    def __exit__(self, *_: object) -> None:
        if self._inside:
            os.kill(self._inside, signal.SIGKILL)  # with process 1 of the bed goes everything
        else:
            self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def command(self, host: str, command: Sequence[str]) -> list[str]:
        """How to run a command on a host, as root, in the present folder."""
        there = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(command)}"
        return [*self._enter("--pid", "--mount", "--uts", "--ipc"), AGENT, host, there]

    def launch(
        self, library: str, mpiexec: str, hosts: str, program: Sequence[str], *, in_turn: bool = False
    ) -> list[str]:
        """How to run `program` as ranks of an MPI library over TCP, begun on the first host.

        hosts: how many ranks on each, as "h1:2,h2:2". in_turn: the hosts take turns in the order of the ranks.
        """
        counts = [int(host.partition(":")[2]) for host in hosts.split(",")]
        flags = launcher_flags(library, hosts, in_turn)
        return self.command(hosts.partition(":")[0], [mpiexec, *flags, "-n", str(sum(counts)), *program])

    # ------------------------------------------------------------ trouble
    def cut(self, host: str) -> None:
        """The host's cable is out, until `mend`."""
        self._link(host, "down")

    def mend(self, host: str) -> None:
        self._link(host, "up")

    def switch_off(self, host: str) -> None:
        """The host's processes are gone, with no word to anybody; after `mend` it answers, as after a new start."""
        self.cut(host)
        inner = Path(f"/proc/{self._inside}/root/{FOLDER}/{host}").read_text().strip()
        net = os.readlink(f"/proc/{self._inside}/root/proc/{inner}/ns/net")
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                with suppress(OSError):
                    held = (process / "cmdline").read_bytes() == b"sleep\0infinity\0"
                    if os.readlink(process / "ns" / "net") == net and not held:
                        os.kill(int(process.name), signal.SIGKILL)

    def _link(self, host: str, state: str) -> None:
        port = f"port{self.addresses.index(host) + 1}"
        subprocess.run([*self._enter(), "ip", "link", "set", port, state], check=True, env={"PATH": search_path()})

    def _enter(self, *namespaces: str) -> list[str]:
        return ["nsenter", "--target", str(self._inside), "--net", *namespaces, "--"]


def launcher_flags(library: str, hosts: str, in_turn: bool = False) -> list[str]:
    """What an MPI library's mpiexec needs to start ranks on the bed's hosts, and to use TCP between them alone."""
    if library == "openmpi":
        tcp = ["--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp", "--mca", "btl_tcp_if_include", "eth0"]
        agent = ["--prtemca", "plm_ssh_agent", AGENT, "--prtemca", "prte_if_include", "eth0"]
        agent += ["--prtemca", "prte_keep_fqdn_hostnames", "1"]
        kept = [part for name in FORWARDED for part in ("-x", name)]
        turns = ["--map-by", "node:OVERSUBSCRIBE"] if in_turn else ["--map-by", "slot:OVERSUBSCRIBE"]
        return ["--oversubscribe", *agent, *tcp, "-H", hosts, *kept, *turns]
    agent = ["-launcher", "rsh", "-launcher-exec", AGENT, "-iface", "eth0"]
    if in_turn:
        return [*agent, "-hosts", ",".join(host.partition(":")[0] for host in hosts.split(",")), "-ppn", "1"]
    return [*agent, "-hosts", hosts]


FORWARDED = ("PATH", "PYTHONPATH")


def environment(library: str) -> dict[str, str]:
    """What ranks on the bed need in their environment."""
    if library == "openmpi":
        allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return allowed | WHOLE_NAMES
    return {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0", "MPIR_CVAR_CH4_NETMOD": "ucx"}


def search_path() -> str:
    """PATH, and where ip and tc may lie beside it."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def until_ready(output: IO[str]) -> str:
    """What comes, up to "ready", the end, or the time limit."""
    said = ""
    while select.select([output], [], [], SECONDS)[0]:
        line = output.readline()
        said += line
        if line in ("", "ready\n"):
            break
    return said
