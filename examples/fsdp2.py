"""FSDP2 over treering's backend: each rank holds a share of the parameters, and of the optimizer's state.

mpiexec -n 2 python examples/fsdp2.py
"""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from integrations.torch_launch import init_process_group

torch.set_num_threads(1)
init_process_group("treering")  # with another backend: integrations.torch_fsdp.register(model)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
for layer in (model[0], model[2], model):
    fully_shard(layer)

torch.manual_seed(1 + dist.get_rank())  # each rank has data of its own
inputs = torch.randn(512, 20)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(200):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :1] - inputs[:, 1:2])
    loss.backward()
    optimizer.step()

held = sum(values.to_local().numel() for values in model.state_dict().values())
if dist.get_rank() == 0:
    total = sum(parameter.numel() for parameter in model.parameters())
    print(f"rank 0 holds {held} of {total} parameters: loss {loss.item():.4f}")
dist.destroy_process_group()
