"""PyTorch DDP under torchrun, with treering averaging the gradients: ranks of one node, and no MPI.

torchrun --nproc-per-node 2 examples/ddp_torchrun.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from integrations.torch_ddp import register

torch.set_num_threads(1)
dist.init_process_group("gloo")  # torchrun says who is who
model = DistributedDataParallel(torch.nn.Linear(20, 1))
state = register(model)  # treering from here on; its ranks meet in the process group's store

torch.manual_seed(dist.get_rank())  # each rank has data of its own
inputs = torch.randn(512, 20)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()

if dist.get_rank() == 0:
    print(f"{dist.get_world_size()} ranks, {state.comm.topology.mpi}: loss {loss.item():.4f}")
dist.destroy_process_group()
