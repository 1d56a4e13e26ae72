"""PyTorch DDP with treering averaging the gradients: two lines differ from a plain DDP program.

mpiexec -n 2 python examples/ddp_one_line.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from integrations.torch_ddp import register
from integrations.torch_launch import init_process_group


def main() -> None:
    torch.set_num_threads(1)
    init_process_group()  # instead of dist.init_process_group: finds the ranks of mpiexec, srun or torchrun
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    )
    state = register(model)  # treering from here on

    torch.manual_seed(1 + rank)  # each rank has data of its own
    inputs = torch.randn(512, 20)
    targets = inputs[:, :1] - inputs[:, 1:2] * inputs[:, 2:3]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    assert losses[-1] < losses[0] / 2
    if rank == 0:
        print(f"loss on rank 0: {losses[0]:.3f} at first, {losses[-1]:.3f} in the end")
        for bucket in state.report():
            print(
                f"bucket {bucket['bucket']}: {bucket['bytes']} bytes by {bucket['algorithm']}, {bucket['calls']} times"
            )


if __name__ == "__main__":
    main()
