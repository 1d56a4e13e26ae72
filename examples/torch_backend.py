"""PyTorch over treering's own backend, under any launcher and without Gloo: plain DDP, and calls of torch.distributed.

mpiexec -n 2 python examples/torch_backend.py
torchrun --nproc-per-node 2 examples/torch_backend.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from integrations.torch_launch import init_process_group

torch.set_num_threads(1)
init_process_group("treering")  # or, under torchrun, import integrations.torch_backend and dist.init_process_group
rank, size = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(torch.nn.Linear(20, 1))  # no hook: its collectives are treering's already

torch.manual_seed(rank)  # each rank has data of its own
inputs = torch.randn(512, 20)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()

losses = [torch.empty(()) for _ in range(size)]
dist.all_gather(losses, loss.detach())
if rank == 0:
    print(f"{size} ranks over {dist.get_backend()}: worst loss {max(losses):.4f}")
dist.destroy_process_group()
