"""Ranks under torchrun that get a world of MPI's. Rank 0 prints JSON of what they found; nobody cleans up.

Arguments: whether to ask for MPI: "ask", or "auto".
"""

import json
import os
import sys

import torch
import torch.distributed as dist

from integrations.torch_ddp import DDPHookState
from integrations.torch_launch import init_process_group

if __name__ == "__main__":
    torch.set_num_threads(1)
    hook = DDPHookState()  # its ranks meet when there is a process group, and something to average
    init_process_group("treering", timeout=60, mpi={"ask": True, "auto": None}[sys.argv[1]])
    from mpi4py import MPI

    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.full((100_000,), float(rank))
    dist.all_reduce(x)
    dist.send(x, (rank + 1) % size)
    dist.recv(x, (rank - 1) % size)
    found = {
        "library": MPI.get_vendor()[0], "nodes": hook.comm.topology.nodes, "links": hook.comm.topology.links,
        "ranks": MPI.COMM_WORLD.allgather(rank), "right": bool((hook.average(x) == sum(range(size))).all()),
        "left": [name for name in os.environ if name.startswith("PMI_")],
    }  # fmt: skip
    if rank == 0:
        print(json.dumps(found), flush=True)
