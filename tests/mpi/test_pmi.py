"""MPI for ranks that torchrun has started: the server that tells them who they are, and what it does not let in."""

import json
import secrets
import socket
import subprocess
import sys
import time
from dataclasses import asdict

import pytest

from integrations import pmi, pmi_server
from tests import launch

SECRET = secrets.token_hex(16)


@pytest.mark.parametrize("mpi", ["mpich", "impi"], indirect=True)
def test_torchruns_ranks_are_a_world_of_mpis(mpi):
    done = launch.torchrun(2, ["-m", "tests.programs.pmi", "ask"], mpi=mpi.name)
    assert done.returncode == 0, launch.describe(done.args, done.returncode, done.stdout, done.stderr)
    found = json.loads(done.stdout)
    assert found.pop("library") == {"mpich": "MPICH", "impi": "Intel MPI"}[mpi.name]
    assert found == {"nodes": [[0, 1]], "links": ["shared-memory"], "ranks": [0, 1], "right": True, "left": []}
    assert "outlived" not in done.stderr


@pytest.mark.parametrize("mpi", ["openmpi"], indirect=True)
def test_open_mpi_is_told_what_to_do(mpi):
    library = launch.find(mpi.name)
    assert library is not None
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = launch.run_command([library.python, "-m", "tests.programs.pmi", "ask"], library.environment(alone))
    assert done.returncode == 1
    assert "LaunchError: rank 0 of 1 cannot have MPI without a launcher of MPI's: rank 0 has Open MPI" in done.stderr
    assert "start them with mpirun, where init_process_group() serves as it is" in done.stderr


@pytest.mark.parametrize(
    "nodes, blocks",
    [
        ("a", "(0,1,1)"), ("aaa", "(0,1,3)"), ("aab", "(0,1,2),(1,1,1)"), ("abab", "(0,1,1),(1,1,1),(0,1,1),(1,1,1)"),
    ],
)  # fmt: skip
def test_nodes_in_mpichs_words(nodes, blocks):
    assert pmi.mapping(nodes) == f"(vector,{blocks})"


def test_who_cannot_have_a_world_is_told_why():
    def refusal(*libraries):
        return pmi.meet([pmi.Place("host", [], library) for library in libraries], 1).refusal

    assert "rank 1 has Open MPI 5.0.8. Open MPI's ranks must be" in refusal("MPICH 5", "Open MPI 5.0.8")
    assert "ranks have Intel MPI 2021 and MPICH 5; give all the same" in refusal("MPICH 5", "Intel MPI 2021")
    assert "rank 0: it finds no MPI library (why). take" in refusal("it finds no MPI library (why)")
    apart = [pmi.Place(host, [], "MPICH 5") for host in "ab"]
    assert pmi.meet(apart, 1).refusal == "rank 0's host has no address that all other hosts reach"


# ---------------------------------------------------------------- the server
class Rank:
    """A connection to the server, which lets it in if it says the right things."""

    def __init__(self, port, says):
        self.file = socket.create_connection(("127.0.0.1", port), timeout=30).makefile("rwb", buffering=0)
        self.file.write(says + b"\n")
        self.came = self.file.readline()

    def ask(self, line):
        self.file.write(line + b"\n")
        return self.file.readline().strip()


@pytest.fixture
def port():
    """Of a server for two ranks, which must be gone after the test."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        job = pmi_server.Job(2, "(vector,(0,1,2))", SECRET, 30)
        command = [sys.executable, "-I", pmi_server.__file__, str(listener.fileno())]
        said = json.dumps(asdict(job)).encode() + b"\n"
        subprocess.run(command, input=said, pass_fds=[listener.fileno()], check=True, timeout=30)
        name = listener.getsockname()
    yield name[1]
    until = time.monotonic() + 30
    while listens(name):
        assert time.monotonic() < until, "the server is still there"


def listens(name):
    try:
        socket.create_connection(name, timeout=30).makefile("rb").read()  # until it ends, if it is just ending
    except ConnectionError:
        return False
    return True


def test_ranks_that_know_the_secret_are_served_and_nobody_else(port):
    wrong = [f"{'0' * 32} 0".encode(), f"{SECRET} 2".encode(), SECRET.encode(), b"cmd=init", b"\xff" * 70_000]
    assert [Rank(port, says).came for says in wrong] == [b""] * len(wrong)
    first, second = (Rank(port, f"{SECRET} {rank}".encode()) for rank in range(2))
    assert (first.came, second.came) == (pmi_server.ACCEPTED,) * 2
    assert Rank(port, f"{SECRET} 1".encode()).came == b""  # it is taken
    assert first.ask(b"cmd=init pmi_version=1 pmi_subversion=1").startswith(b"cmd=response_to_init rc=0")
    assert first.ask(b"cmd=get_universe_size") == b"cmd=universe_size rc=0 size=2"
    assert first.ask(b"cmd=put kvsname=treering key=a value=b=c d") == b"cmd=put_result rc=0 msg=success"
    second.file.write(b"cmd=barr")
    second.file.write(b"ier_in\n")
    assert first.ask(b"cmd=barrier_in") == second.file.readline().strip() == b"cmd=barrier_out rc=0"
    assert second.ask(b"cmd=get kvsname=treering key=a") == b"cmd=get_result rc=0 msg=success value=b=c d"
    assert second.ask(b"cmd=get key=PMI_process_mapping").endswith(b"value=(vector,(0,1,2))")
    assert b"rc=-1" in second.ask(b"cmd=get kvsname=treering key=nothing")
    assert b"rc=-1" in second.ask(b"cmd=spawn nprocs=1000")
    for rank in first, second:
        assert rank.ask(b"cmd=finalize") == b"cmd=finalize_ack rc=0"
        rank.file.close()


def test_a_rank_that_is_lost_keeps_nobody_waiting(port):
    first, second = (Rank(port, f"{SECRET} {rank}".encode()) for rank in range(2))
    first.file.write(b"cmd=barrier_in\n")
    second.file.close()
    assert first.file.readline() == b""
