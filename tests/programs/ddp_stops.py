"""Training that goes wrong on rank 1 in its fourth step: the job must end, not zero, and say why.

    ddp_stops WAY [OVERLAP]

raise: its backward raises. sleep: it never comes. die: its process ends. differ: it brings a bucket of another size.
"""

import os
import sys
import time
from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import collectives
from integrations.torch_ddp import register
from integrations.torch_launch import init_process_group

RANK = MPI.COMM_WORLD.rank
DEADLINE = 3.0


class Trap(torch.autograd.Function):
    """The identity, whose backward goes wrong where `way` says so."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, way: str) -> torch.Tensor:
        ctx.way = way
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.way == "raise":
            raise ArithmeticError("the loss exploded on rank 1")
        if ctx.way == "sleep":
            time.sleep(1000)
        if ctx.way == "die":
            os._exit(9)
        return gradient, None


def main(way: str, overlap: Any = "auto") -> None:
    torch.set_num_threads(1)
    init_process_group(timeout=60)
    model = DistributedDataParallel(nn.Linear(8, 8))
    state = register(model, comm=collectives.Communicator(timeout=DEADLINE), overlap=overlap)
    for step in range(6):
        wrong = RANK == 1 and step == 3
        out = Trap.apply(model(torch.ones(2, 8)), way if wrong else "")
        if way == "differ" and wrong:
            state.average(torch.ones(5))
        out.sum().backward()
    print("trained to the end", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
