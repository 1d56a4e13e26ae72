"""A world of MPI's for ranks that no MPI launcher has started, as under torchrun: MPICH and Intel MPI take it so.

Ranks tell rank 0 through a store where they are and what MPI library they have; it starts the server (pmi_server.py)
at the narrowest address that all of them reach, and tells them where and by which secret. Each connects by itself and
hands MPI the open connection, as MPICH's own launcher does. The rank in MPI is the one given here.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import groupby
from typing import Any

import msgspec

from collectives.errors import LaunchError
from collectives.ranks.store_peers import this_host
from collectives.topology import mpi_library
from integrations import pmi_server
from integrations.addresses import LOOPBACK, addresses, meeting_address

SPEAK_IT = "MPICH", "Intel MPI"  # as mpi4py names them
WITHOUT = "ranks of one node need no MPI (communicator(), or mpi=False)"
MENDS = {
    "Open MPI": "Open MPI's ranks must be children of its own launcher: start them with mpirun, where "
    "init_process_group() serves as it is, or take an environment with MPICH or Intel MPI",
    "": "take an environment with MPICH or Intel MPI, or start the ranks with the MPI library's own launcher",
}


class Place(msgspec.Struct, frozen=True):
    """What a rank tells: the node whose memory it shares, its host's addresses, its MPI library or why it has none."""

    node: str
    addresses: list[str]
    library: str


class Meeting(msgspec.Struct, frozen=True):
    """What rank 0 answers: where the server is and the job's secret; or why there is none."""

    host: str = ""
    port: int = 0
    secret: str = ""
    refusal: str = ""


def give_world(store: Any, rank: int, size: int, seconds: float) -> None:
    """Initialise MPI with a world of all `size` ranks, which call this with one store. Collective.

    seconds: that ranks may be late. LaunchError, the same on all ranks, where a rank has an MPI library that cannot,
    has initialised it already, or cannot be reached.
    """
    mine = Place(node_here(), list(addresses().values()), library())
    store.set(f"place/{rank}", msgspec.json.encode(mine))
    try:
        if rank == 0:
            places = [msgspec.json.decode(store.get(f"place/{each}"), type=Place) for each in range(size)]
            store.set("met", msgspec.json.encode(meet(places, seconds)))
        met = msgspec.json.decode(store.get("met"), type=Meeting)
    except RuntimeError as error:  # as torch's stores raise them all
        raise LaunchError(f"rank {rank} has not heard of all {size} ranks: {error}") from error
    if met.refusal:
        raise LaunchError(f"rank {rank} of {size} cannot have MPI without a launcher of MPI's: {met.refusal}")
    initialise(connected(met, rank), rank, size)


def node_here() -> str:
    """Equal where MPI libraries can share memory: processes see each other, and the same files in shared memory."""
    return f"{this_host()} {os.stat('/dev/shm').st_dev}"


def library() -> str:
    """The MPI library's name and version, without initialising it; or a sentence that says why there is none to use."""
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return f"it finds no MPI library ({error})"
    if MPI.Is_initialized():
        return "it has imported mpi4py.MPI before, which made it a world of its own; import that behind this call"
    return mpi_library()


def meet(places: Sequence[Place], seconds: float) -> Meeting:
    """Start the server, on rank 0, if ranks that are in these places can have one."""
    for rank, place in enumerate(places):
        if not place.library.startswith(SPEAK_IT):
            kind = next((kind for kind in MENDS if kind and place.library.startswith(kind)), "")
            has = f"rank {rank} has {place.library}" if kind else f"rank {rank}: {place.library}"
            return Meeting(refusal=f"{has}. {MENDS[kind]}; {WITHOUT}")
    if len(libraries := {place.library for place in places}) > 1:
        return Meeting(refusal=f"ranks have {' and '.join(sorted(libraries))}; give all the same")
    nodes = [place.node for place in places]
    host = LOOPBACK if len(set(nodes)) == 1 else meeting_address([place.addresses for place in places])
    if not host:
        return Meeting(refusal="rank 0's host has no address that all other hosts reach")
    job = pmi_server.Job(len(places), mapping(nodes), secrets.token_hex(32), seconds)
    with socket.create_server((host, 0), backlog=4096) as listener:
        command = [sys.executable, "-I", pmi_server.__file__, str(listener.fileno())]
        said = json.dumps(asdict(job)).encode() + b"\n"
        subprocess.run(command, input=said, pass_fds=[listener.fileno()], cwd="/", check=True)
        return Meeting(host, listener.getsockname()[1], job.secret)


def mapping(nodes: Sequence[object]) -> str:
    """Which ranks share a node, in MPICH's words: blocks of (first node, how many nodes, ranks on each), in order."""
    numbers = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
    runs = [(node, len(list(run))) for node, run in groupby(numbers[node] for node in nodes)]
    return f"(vector,{','.join(f'({node},1,{ranks})' for node, ranks in runs)})"


def connected(met: Meeting, rank: int) -> socket.socket:
    """A connection that the server has let in."""
    try:
        connection = socket.create_connection((met.host, met.port), timeout=60)
        connection.sendall(f"{met.secret} {rank}\n".encode())
        answer = connection.recv(len(pmi_server.ACCEPTED), socket.MSG_WAITALL)
    except OSError as error:
        raise LaunchError(f"rank {rank} does not reach rank 0 at {met.host}, port {met.port}: {error}") from error
    if answer != pmi_server.ACCEPTED:
        raise LaunchError(f"rank 0 at {met.host}, port {met.port} does not let rank {rank} in: is it there twice?")
    connection.settimeout(None)
    return connection


def initialise(connection: socket.socket, rank: int, size: int) -> None:
    """MPI, which reads from the connection who it is, and keeps it."""
    from mpi4py import MPI

    with environment(PMI_FD=str(connection.detach()), PMI_RANK=str(rank), PMI_SIZE=str(size)):
        MPI.Init_thread()
    if MPI.COMM_WORLD.size != size:
        raise LaunchError(f"{mpi_library()} has made a world of {MPI.COMM_WORLD.size} of {size} ranks")


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """With these and no others of that kind, which an outer launcher may have left. What is started later sees none."""
    saved = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(("PMI_", "PMIX_"))}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(saved)
