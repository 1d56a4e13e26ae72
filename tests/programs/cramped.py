"""Ranks on a machine that lacks something: every kind of memory and every algorithm, right or refused with the reason.

Rank 0 prints {"read": whether ranks read each other's memory, "refused": {call: [what each rank was told]}} as JSON.
"""

import json
from collections.abc import Callable
from typing import Any

import torch

import collectives
from collectives.algorithms import every
from collectives.errors import CollectiveError
from tests.programs import world

LARGE = 12_000_000  # elements of float32, of which three ranks' do not fit into 64 MB


def right(comm: collectives.Communicator, x: torch.Tensor, **how: Any) -> bool:
    x.fill_(comm.rank + 1.0)
    comm.allreduce(x, **how)
    return bool((x == comm.size * (comm.size + 1) / 2).all())


def attempt(call: Callable[[], bool]) -> str:
    try:
        return "" if call() else "WRONG"
    except CollectiveError as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    comm = world.communicator(timeout=60)
    size, nodes = comm.size, comm.topology.nodes
    calls: dict[str, Callable[[], bool]] = {
        "large": lambda: right(comm, torch.empty(LARGE)),
        "empty": lambda: right(comm, comm.empty(LARGE)),
        "register": lambda: right(comm, comm.register(torch.empty(LARGE))),
        "register what fits": lambda: right(comm, comm.register(torch.empty(1000))),
    }
    for found in every():
        if found.collective == "allreduce" and not found.refusal(size, nodes):
            calls[found.name] = lambda name=found.name: right(comm, torch.empty(100_000), algorithm=name)  # type: ignore[misc]
    refused = {call: said for call, work in calls.items() if any(said := world.everyone(attempt(work)))}
    if comm.rank == 0:
        print(json.dumps({"read": comm._channel.endpoint.reads_peers, "refused": refused}), flush=True)
    comm.close()


if __name__ == "__main__":
    main()
