"""Who shares a node with whom, what that is called, and processes that are no job."""

import os
from types import SimpleNamespace

import pytest

from collectives.errors import LaunchError
from collectives.ranks import launch
from collectives.ranks.launch import connect, refuse_lone_worlds, split_by_node
from collectives.ranks.machine import UNBOUND, Machine, look, transport
from collectives.topology import Topology, domains, group_by, listing, mpi_library, network, processor

LINKS = ("shared-memory",)


def topology(*nodes, links=LINKS, **more):
    return Topology(nodes, links, **{"cpu": "a processor", "mpi": "an MPI 1.0", **more})


@pytest.mark.parametrize(
    "leaders, nodes",
    [
        ([0], ((0,),)),
        ([0, 0, 0], ((0, 1, 2),)),
        ([0, 0, 2, 2], ((0, 1), (2, 3))),
        ([0, 1, 0, 1, 0], ((0, 2, 4), (1, 3))),
        ([0, 1, 1, 3, 1], ((0,), (1, 2, 4), (3,))),
    ],
)
def test_nodes_from_the_lowest_rank_of_each(leaders, nodes):
    assert group_by(leaders) == nodes


@pytest.mark.parametrize(
    "nodes, shape",
    [
        (((0,),), "1x1"),
        (((0, 1), (2, 3)), "2x2"),
        (((0, 1, 2, 3),), "1x4"),
        (((0, 1, 2), (3,)), "3+1"),
        (((0,), (1, 2, 4), (3,)), "1+3+1"),
    ],
)
def test_a_shape_names_nodes_and_ranks(nodes, shape):
    found = topology(*nodes)
    assert found.shape == shape
    assert found.ranks == sum(found.ranks_per_node)
    assert [found.node_of(rank) for node in nodes for rank in node] == [i for i, node in enumerate(nodes) for _ in node]


def test_levels_are_sockets_nodes_and_what_switches_tell_apart():
    nodes = ((0, 1), (2, 3), (4, 5), (6,))
    paths = (("hall", "x", "a"), ("hall", "x", "a"), ("hall", "y", "b"), ("hall", "y", "b"))
    assert topology(*nodes).nest == nodes
    racks = topology(*nodes, switches=paths)
    assert racks.nest == (((0, 1), (2, 3)), ((4, 5), (6,)))
    assert "on switches of 2x2 |" in racks.fingerprint
    assert topology(*nodes, switches=(*paths[:3], ())).nest == nodes  # where one does not say
    sockets = topology((0, 1, 2, 3), (4, 5), domains=((0, 2), (1, 3), (4, 5)))
    assert sockets.nest == (((0, 2), (1, 3)), ((4, 5),))


def test_switches_are_what_slurm_says_or_the_environment(monkeypatch):
    monkeypatch.delenv("TREERING_SWITCHES", raising=False)
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR", "core.leaf3.host7")
    assert look().switches == ("core", "leaf3")
    monkeypatch.setenv("TREERING_SWITCHES", "hall.rack")
    assert look().switches == ("hall", "rack")


def test_fingerprints_differ_where_a_table_may_not_be_used():
    base = topology((0, 1), (2, 3))
    others = [
        topology((0, 1, 2, 3)),
        topology((0, 1, 2), (3,)),
        topology((0, 1), (2, 3), links=("shared-memory", "mpi")),
        topology((0, 1), (2, 3), cpu="another"),
        topology((0, 1), (2, 3), mpi="an MPI 1.1"),
        topology((0, 1), (2, 3), device="a GPU"),
        topology((0, 1), (2, 3), network="tcp at 1 Gbit/s"),
        topology((0, 2), (1, 3)),
    ]
    assert len({found.fingerprint for found in [base, *others]}) == 1 + len(others)
    assert base.fingerprint == topology((0, 1), (2, 3)).fingerprint
    assert all(word in base.fingerprint for word in ("2x2", "shared-memory", "a processor", "an MPI 1.0"))


def test_this_machine_has_names():
    assert processor().strip()
    assert mpi_library().split()[-1][0].isdigit()


# ---------------------------------------------------------------- machines
def machine(name="h", cpu="C", sockets=1, domains=1, mbits=0, domain=UNBOUND):
    return Machine(name, cpu, sockets, domains, 0, mbits, domain)


def test_what_the_kernel_says_of_a_machine(tmp_path):
    files = {
        "proc/cpuinfo": "processor: 0\nmodel name\t: A  Processor\n",
        "sys/devices/system/cpu/cpu0/topology/physical_package_id": "0",
        "sys/devices/system/cpu/cpu1/topology/physical_package_id": "1",
        "sys/devices/system/cpu/cpufreq/boost": "1",
        "sys/devices/system/node/node0/cpulist": "0-1023",
        "sys/devices/system/node/node1/cpulist": "1024-1025,1030",
        "sys/devices/system/node/node2/cpulist": "",  # memory alone
        "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de",
        "sys/bus/pci/devices/0000:01:00.0/class": "0x030200",
        "sys/bus/pci/devices/0000:02:00.0/vendor": "0x10de",
        "sys/bus/pci/devices/0000:02:00.0/class": "0x040300",  # its sound
        "sys/class/net/eth0/operstate": "up",
        "sys/class/net/eth0/speed": "25000",
        "sys/class/net/eth0/device/vendor": "",
        "sys/class/net/docker0/operstate": "up",
        "sys/class/net/docker0/speed": "100000",  # no card
        "sys/class/net/eth1/operstate": "down",
        "sys/class/net/eth1/speed": "400000",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = look(tmp_path)
    assert (found.cpu, found.sockets, found.domains, found.domain) == ("A Processor", 2, 2, 0)
    assert (found.gpus, found.mbits) == (1, 25000)
    assert found.processors == "A Processor, 2 sockets, 2 NUMA domains"
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "rate").write_text("200 Gb/sec (4X HDR)")
    (port / "state").write_text("4: ACTIVE")
    assert look(tmp_path).mbits == 200_000
    blank = look(tmp_path / "nothing")
    assert (blank.sockets, blank.domains, blank.domain, blank.gpus, blank.mbits) == (1, 1, UNBOUND, 0, 0)
    assert transport(tmp_path) == "tcp"


def test_what_nodes_have_in_common_is_said_once():
    assert listing(["B", "A", "B"]) == "A and B"
    assert network(["tcp", "tcp"], [machine(mbits=25000), machine(mbits=10000)]) == "tcp at 10 Gbit/s"
    assert network(["verbs", "tcp"], [machine(mbits=0), machine(mbits=10000)]) == "tcp and verbs"


def test_domains_are_ranks_of_a_node_that_are_bound_alike():
    nodes = ((0, 2, 4), (1, 3))
    bound = [machine(domain=domain) for domain in (1, 0, 0, 0, 1)]
    assert domains(nodes, bound) == ((2,), (0, 4), (1, 3))
    assert domains(nodes, [*bound[:4], machine()]) == ()
    assert domains(nodes, [machine(domain=0)] * 5) == ()


def test_a_rank_is_named_with_its_host_where_hosts_differ():
    assert topology((0, 2), (1,), hosts=("n1.a", "n1.b")).name(2) == "rank 2 on n1.a"
    assert topology((0, 2), (1,), hosts=("node", "node")).name(2) == "rank 2"
    assert topology((0, 1)).name(1) == "rank 1"


# ---------------------------------------------------------------- no job
@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name, _ in launch.LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("variable, launcher", launch.LAUNCHERS)
def test_worlds_of_one_among_several_processes_are_refused(monkeypatch, variable, launcher):
    monkeypatch.setenv(variable, "2")
    with pytest.raises(LaunchError) as caught:
        refuse_lone_worlds(1, "Some MPI 1.0")
    said = str(caught.value)
    assert f"{launcher} started 2 processes, but each is a world of one: mpi4py here uses Some MPI 1.0" in said
    assert "start them with " in said
    assert ("--mpi=pmi2" in said) == (launcher == "srun")
    refuse_lone_worlds(2, "Some MPI 1.0")


@pytest.mark.parametrize("value", ["", "1", "0", "many"])
def test_one_process_may_be_alone(monkeypatch, value):
    for variable, _ in launch.LAUNCHERS:
        monkeypatch.setenv(variable, value)
    refuse_lone_worlds(1, "Some MPI 1.0")
    assert os.environ[launch.LAUNCHERS[0][0]] == value


def host(size, rank):
    """The peers of a host, as far as they are split into nodes."""
    each = int(os.environ["TREERING_RANKS_PER_NODE"]) if os.environ["TREERING_RANKS_PER_NODE"].isdigit() else 0
    found = SimpleNamespace(rank=rank, free=lambda: None)
    found.host = lambda: found
    found.split = lambda color, _: [rank for rank in range(size) if rank // each == color]
    return found


@pytest.mark.parametrize("given, node", [("1", [4]), ("2", [4]), ("3", [3, 4]), ("9", [0, 1, 2, 3, 4])])
def test_a_host_may_be_parted_into_nodes(monkeypatch, given, node):
    monkeypatch.setenv("TREERING_RANKS_PER_NODE", given)
    assert split_by_node(host(5, 4)) == node


@pytest.mark.parametrize("given", ["0", "-1", "two", "1.5"])
def test_nodes_have_a_number_of_ranks(monkeypatch, given):
    monkeypatch.setenv("TREERING_RANKS_PER_NODE", given)
    with pytest.raises(ValueError, match=f"TREERING_RANKS_PER_NODE is '{given}'; it is a number of ranks, 1 or more"):
        split_by_node(host(5, 4))


@pytest.mark.parametrize("wrong", [3, "world", object()])
def test_what_is_no_communicator_is_refused(wrong):
    with pytest.raises(TypeError, match=f"mpi_comm is a {type(wrong).__name__}; pass an mpi4py intracommunicator"):
        connect(wrong, 1)
