"""Save a training state, hook included, or resume it: `ddp_checkpoint save|resume FILE`, at any number of ranks."""

import pickle
import sys
from pathlib import Path

import torch
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from integrations.torch_ddp import DDPHookState, allreduce_hook
from integrations.torch_launch import init_process_group

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


def step(model: nn.Module) -> None:
    """Every rank's gradient is its rank + 1, so the average tells how many took part."""
    (model(torch.ones(1, 4)).sum() * (RANK + 1)).backward()


def main(action: str, file: Path) -> None:
    init_process_group(timeout=60)
    model = DistributedDataParallel(nn.Linear(4, 4))
    state = DDPHookState(overlap="inline") if action == "save" else pickle.loads(file.read_bytes())
    model.register_comm_hook(state, allreduce_hook)
    step(model)
    wanted = (SIZE + 1) / 2
    assert model.module.bias.grad.tolist() == [wanted] * 4, model.module.bias.grad
    assert state.overlap == "inline", state.overlap
    assert [row["calls"] for row in state.report()] == [1], state.report()
    if action == "save" and RANK == 0:
        file.write_bytes(pickle.dumps(state))
    state.comm.barrier()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
