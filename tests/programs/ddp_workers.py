"""DataLoader workers, forked and spawned, that import the DDP door at their head. Two ranks, with a helper thread.

Rank 0 prints {way: [average gradient, whether each rank's worker has initialised MPI]}. Nothing is closed at the end.
"""

import json
import multiprocessing
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import collectives
from integrations.torch_ddp import register
from integrations.torch_launch import init_process_group


class Numbers(Dataset[tuple[torch.Tensor, bool]]):
    """Its rank + 1, four times; and whether MPI was initialised in the worker, and not inherited."""

    def __init__(self, rank: int):
        self.rank = rank

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> tuple[torch.Tensor, bool]:
        inherited = multiprocessing.get_start_method(allow_none=True) != "spawn"
        return torch.full((4,), self.rank + 1.0), "mpi4py.MPI" in sys.modules and not inherited


def main() -> None:
    init_process_group(timeout=60)
    comm = collectives.Communicator(timeout=60)
    model = DistributedDataParallel(nn.Linear(4, 1, bias=False))
    register(model, overlap="thread")
    found = {}
    for way in ("spawn", "fork"):
        for x, initialised in DataLoader(Numbers(comm.rank), num_workers=1, multiprocessing_context=way):
            model(x).sum().backward()
            mine = bytearray([bool(initialised)])
            everyone = bytearray(comm.size)
            comm.allgather(mine, out=everyone)
            found[way] = [model.module.weight.grad.flatten().tolist(), [bool(each) for each in everyone]]
            model.zero_grad()
    if comm.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
