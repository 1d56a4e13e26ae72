"""Ranks on several hosts: python -m tests.programs.hosts CASE. Rank 0 prints JSON; see CASES at the end."""

import json
import socket
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from mpi4py import MPI

import collectives
from collectives import settings
from collectives.algorithms import find
from collectives.errors import CollectiveError
from collectives.tables.table import Place, Rule, Table

WORLD = MPI.COMM_WORLD
DEADLINE = 3.0  # seconds


def every_hierarchy(comm: collectives.Communicator) -> int:
    """How many allreduces with one hierarchy or another are not right, or not equal on all ranks, to the bit."""
    wrong = 0
    parameters = {p.name: p.choices for p in find("allreduce", "hierarchical").parameters}
    ways: list[dict[str, Any]] = [{"segment_bytes": 4096, "slots": 3}]
    ways += [
        {name: value}
        for name, values in parameters.items()
        if name not in ("segment_bytes", "slots")
        for value in values
    ]
    for count in (1, 1009, 40_009):
        mine = torch.arange(count) % 97 * (comm.rank + 1)
        right = (torch.arange(count) % 97 * sum(range(1, comm.size + 1))).float()
        for how in ways:
            x = mine.float()
            comm.allreduce(x, algorithm="hierarchical", **how)
            wrong += not torch.equal(x, right)
            noise = torch.rand(count, generator=torch.Generator().manual_seed(comm.rank))
            comm.allreduce(noise, algorithm="hierarchical", **how)
            wrong += len(set(WORLD.allgather(noise.numpy().tobytes()))) > 1
    return wrong


def topology() -> dict[str, Any]:
    comm = collectives.Communicator(timeout=60)
    found = comm.topology
    names = WORLD.allgather(socket.gethostname())
    return {
        "nodes": found.nodes, "hosts": found.hosts, "names": names, "network": found.network, "links": found.links,
        "fingerprint": found.fingerprint, "wrong": every_hierarchy(comm),
    }  # fmt: skip


def stuck() -> dict[str, Any]:
    """Allreduces until one fails, as it must once a cable is out or a host is off; each rank writes what it saw.

    The second argument is a folder in which each rank makes a file once it is on its way, and one in the end.
    """
    comm = collectives.Communicator(timeout=DEADLINE)
    x = torch.ones(1 << 20)
    comm.allreduce(x)
    Path(sys.argv[2], f"rank-{comm.rank}-runs").touch()
    while True:
        try:
            comm.allreduce(x.fill_(1))
        except CollectiveError as error:
            seen = {"rank": comm.rank, "type": type(error).__name__, "text": str(error)}
            Path(sys.argv[2], f"rank-{comm.rank}-saw").write_text(json.dumps(seen))
            raise


def settings_differ() -> dict[str, Any]:
    """What each rank is told where host h2 has another treering, and where it has another table."""
    there = socket.gethostname() == "h2"
    with patch.object(settings, "release", return_value="0.0.1") if there else nullcontext():
        version = refusal()
    rule = Rule(collective="allreduce", min_bytes=0, max_bytes=None, algorithm="ring")
    place = Place(nodes=1, ranks_per_node=[1], fingerprint="another")
    table = refusal(table=Table(topology=place, rules=[rule]) if there else None)
    return {"version": version, "table": table}


def refusal(**how: Any) -> list[str]:
    """What each rank is told when it makes a communicator."""
    try:
        collectives.Communicator(timeout=DEADLINE, **how)
    except CollectiveError as error:
        return WORLD.allgather(f"{type(error).__name__}: {error}")
    return WORLD.allgather("nothing")


CASES = {each.__name__: each for each in (topology, stuck, settings_differ)}

if __name__ == "__main__":
    found = CASES[sys.argv[1]]()
    if WORLD.rank == 0:
        print(json.dumps(found), flush=True)
