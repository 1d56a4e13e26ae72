"""Several hosts, in namespaces of this machine: topology, collectives over real links, and what goes wrong there."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import launch
from tests.hosts.bed import AGENT, Bed, NoBed, environment

pytestmark = pytest.mark.hosts
NAMES = "127.0.0.1 localhost 10.77.0.1 h1 h1 10.77.0.2 h2 h2"
HOLD = "import time; from tests.hosts.bed import Bed; Bed(['h1']).__enter__(); print(1, flush=True); time.sleep(99)"


@pytest.fixture
def bed_of(pytestconfig):
    """Makes beds, or skips the test with the reason why there can be none."""

    @contextlib.contextmanager
    def made(*addresses, **settings) -> Iterator[Bed]:
        with contextlib.ExitStack() as stack:
            try:
                bed = stack.enter_context(Bed(addresses, **settings))
            except NoBed as reason:
                if pytestconfig.getoption("--require-hosts"):
                    raise
                pytest.skip(str(reason))
            yield bed

    return made


def ranks(bed, mpi, hosts, program, *arguments, in_turn=False, timeout=90):
    """Run tests.programs.PROGRAM as ranks on the bed's hosts, whatever exit status."""
    library = found(mpi)
    command = bed.launch(
        mpi.name, library.mpiexec, hosts, [library.python, "-m", f"tests.programs.{program}", *map(str, arguments)],
        in_turn=in_turn,
    )  # fmt: skip
    return launch.run_command(command, library.environment(environment(mpi.name)), timeout=timeout)


def found(mpi) -> launch.Library:
    library = launch.find(mpi.name)
    assert library is not None
    return library


def said(done):
    assert done.returncode == 0, launch.describe(done.args, done.returncode, done.stdout, done.stderr)
    answer, _ = json.JSONDecoder().raw_decode(done.stdout, done.stdout.index("{"))  # UCX may warn behind it
    return answer


# ---------------------------------------------------------------- the bed itself
def of_beds():
    """Processes that are in network namespaces other than this one's."""
    here, found = os.readlink("/proc/self/ns/net"), set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(process / "ns" / "net") != here and (process / "cmdline").read_bytes():
                    found.add(int(process.name))
    return found


def test_a_bed_is_gone_after_its_end_and_after_a_kill(bed_of):
    before, links = of_beds(), sorted(os.listdir("/sys/class/net"))
    with bed_of("h1", "h2") as bed, bed_of("h1") as other:
        where = ["bash", "-c", "hostname; touch /dev/shm/mine; ls /dev/shm /sys/class/net; cat /etc/hosts"]
        there = subprocess.run(bed.command("h2", where), capture_output=True, text=True, check=True).stdout
        assert there.split() == ["h2", "/dev/shm:", "mine", "/sys/class/net:", "eth0", "lo", *NAMES.split()]
        listing = subprocess.run(other.command("h1", ["ls", "/dev/shm"]), capture_output=True, text=True, check=True)
        assert listing.stdout == ""
        assert of_beds() > before
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, cwd=launch.ROOT) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        holder.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while of_beds() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert of_beds() <= before
    assert sorted(os.listdir("/sys/class/net")) == links


# ---------------------------------------------------------------- topology, and right results
@pytest.mark.parametrize(
    "mpi, hosts, in_turn, names, nodes",
    [
        ("mpich", "h1:2,h2:2", True, {}, [[0, 2], [1, 3]]),
        ("mpich", "h1:1,h2:1", False, {"h1": "node", "h2": "node"}, [[0], [1]]),
        ("openmpi", "h1:2,h2:1", False, {"h1": "n1.a", "h2": "n1.b"}, [[0, 1], [2]]),
    ],
    indirect=["mpi"],
    ids=["mpich-2x2-in-turn", "mpich-equal-names", "openmpi-2+1-cut-names"],
)
def test_nodes_are_those_that_share_memory_whatever_their_names(bed_of, mpi, hosts, in_turn, names, nodes):
    addresses = [host.partition(":")[0] for host in hosts.split(",")]
    with bed_of(*addresses, names=names) as bed:
        seen = said(ranks(bed, mpi, hosts, "hosts", "topology", in_turn=in_turn))
    assert seen["nodes"] == nodes
    assert seen["hosts"] == [names.get(address, address) for address in addresses]
    assert seen["names"] == [
        seen["hosts"][next(i for i, node in enumerate(nodes) if rank in node)] for rank in range(sum(map(len, nodes)))
    ]
    assert seen["links"] == (["mpi"] if len(nodes) == sum(map(len, nodes)) else ["shared-memory", "mpi"])
    assert seen["network"] == "tcp at 10 Gbit/s"  # what the card says, not what the switch lets through
    assert ("interleaved" in seen["fingerprint"]) == in_turn
    assert seen["wrong"] == 0


@pytest.mark.parametrize("mpi", ["mpich"], indirect=True)
def test_the_contract_on_four_hosts(bed_of, mpi):
    with bed_of("h1", "h2", "h3", "h4") as bed:
        seen = said(ranks(bed, mpi, "h1:1,h2:1,h3:1,h4:1", "contract", "four hosts", 12, 30, timeout=150))
    assert seen["wrong"] == []
    assert (seen["shape"], seen["links"]) == ("4x1", ["mpi"])


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"], indirect=True)
def test_a_command_starts_its_ranks_on_hosts_by_an_agent(bed_of, mpi, tmp_path):
    library, hostfile = found(mpi), tmp_path / "hosts"
    hostfile.write_text("h1 slots=1\nh2\n")
    measured = ["--sizes", "1024", "--contenders", "treering", "--json"]
    command = ["bench", "--hostfile", str(hostfile), "--agent", AGENT, *measured]
    with bed_of("h1", "h2") as bed:
        there = bed.command("h1", [library.python, "-m", "tuner.cli", *command])
        done = launch.run_command(there, library.environment(environment(mpi.name) | over_tcp(mpi.name)), timeout=90)
    assert said(done)["context"]["ranks_per_node"] == [1, 1]


def over_tcp(library):
    return {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp"} if library == "openmpi" else {}


@pytest.mark.parametrize("mpi", ["mpich"], indirect=True)
def test_torchrun_once_a_host_gives_ranks_a_world_of_mpis(bed_of, mpi):
    library, counts = found(mpi), {"h1": 2, "h2": 1}
    program = ["--master-addr", "h1", "--master-port", "29500", "-m", "tests.programs.pmi", "auto"]
    settings = library.environment(environment(mpi.name) | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"})
    with bed_of(*counts) as bed, ThreadPoolExecutor() as beside:
        started = []
        for number, (host, ranks_there) in enumerate(counts.items()):
            where = ["--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", str(ranks_there)]
            command = bed.command(host, [library.python, "-m", "torch.distributed.run", *where, *program])
            started.append(beside.submit(launch.run_command, command, settings, timeout=90))
        seen, other = (each.result() for each in started)
    assert other.returncode == 0, launch.describe(other.args, other.returncode, other.stdout, other.stderr)
    answer = said(seen)
    assert (answer["library"], answer["ranks"], answer["right"]) == ("MPICH", [0, 1, 2], True)
    assert (answer["nodes"], answer["links"]) == ([[0, 1], [2]], ["shared-memory", "mpi"])


# ---------------------------------------------------------------- trouble
@pytest.mark.parametrize("mpi, what", [("mpich", "cut"), ("mpich", "switch_off"), ("openmpi", "cut")], indirect=["mpi"])
def test_a_host_that_is_lost_while_ranks_call_ends_the_job_with_names(bed_of, mpi, what, tmp_path):
    def trouble():
        wait_for(tmp_path / "rank-0-runs", tmp_path / "rank-1-runs")
        getattr(bed, what)("h2")
        wait_for(tmp_path / "rank-0-saw")
        bed.mend("h2")  # MPICH's launcher waits for a host for as long as its network is silent

    with bed_of("h1", "h2") as bed:
        threading.Thread(target=trouble, daemon=True).start()
        done = ranks(bed, mpi, "h1:1,h2:1", "hosts", "stuck", tmp_path)
    assert done.returncode != 0
    seen = json.loads((tmp_path / "rank-0-saw").read_text())
    assert seen["type"] in ("CollectiveTimeout", "PeerLost"), seen
    assert seen["text"].startswith("rank 0 on h1: allreduce")
    assert "rank 1 on h2" in seen["text"]


def wait_for(*files):
    while not all(file.exists() for file in files):
        time.sleep(0.05)


@pytest.mark.parametrize("mpi", ["mpich"], indirect=True)
def test_hosts_with_another_version_or_table_are_named(bed_of, mpi):
    with bed_of("h1", "h2") as bed:
        seen = said(ranks(bed, mpi, "h1:1,h2:1", "hosts", "settings_differ"))
    words = {"version": ("treering", "0.0.1 on h2"), "table": ("TREERING_TABLE", "none on h1", "on h2")}
    for case, told in seen.items():
        assert len(set(told)) == 1
        assert told[0].startswith("MismatchError")
        assert all(word in told[0] for word in words[case]), told
