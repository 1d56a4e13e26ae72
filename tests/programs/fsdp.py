"""FSDP2 and HSDP on four ranks, in all ways in which treering serves them, beside the same model alone.

Rank 0 prints JSON: where gradients differ, and how many buffers of a late step were symmetric, of how many.
Then `loans: right`.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import collectives
from integrations.loans import Loans
from integrations.torch_fsdp import register
from integrations.torch_launch import init_process_group

SHAPE, NAMES = (2, 2), ("replicas", "shards")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Tanh())]
    return nn.Sequential(nn.Embedding(10, 64), *layers, nn.Linear(64, 3)).double()


def sharded(mesh: DeviceMesh, **settings: Any) -> Any:
    made = model()
    for layer in (*made, made):
        if not isinstance(layer, nn.Tanh):
            fully_shard(layer, mesh=mesh, **settings)
    return made


def plain(mesh: DeviceMesh) -> Any:
    return sharded(mesh)


def registered(mesh: DeviceMesh) -> Any:
    """Over meshes of two dimensions FSDP2 averages over the replicas by itself, over its own group."""
    made = sharded(mesh)
    register(made)
    return made


def by_hook(mesh: DeviceMesh) -> Any:
    made = sharded(mesh["shards"])
    register(made, replicas=mesh["replicas"].get_group())
    return made


def mixed(mesh: DeviceMesh) -> Any:
    made = sharded(mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32))
    register(made)
    return made


WAYS = {"treering": (plain, registered, by_hook), "gloo": (registered, by_hook, mixed)}
CASES = {f"{way.__name__} over {backend}": (way, backend) for backend, ways in WAYS.items() for way in ways}


def meshes() -> dict[str, DeviceMesh]:
    """Of two dimensions, one over each backend."""
    made = {"treering": init_device_mesh("cpu", SHAPE, mesh_dim_names=NAMES)}
    ranks = made["treering"].mesh
    parts = [list(each) for each in (ranks.t().tolist(), ranks.tolist())]
    groups = [dist.new_subgroups_by_enumeration(part, backend="gloo")[0] for part in parts]
    made["gloo"] = DeviceMesh.from_group(groups, "cpu", mesh=ranks, mesh_dim_names=NAMES)
    return made


def differing(trained: Any, alone: nn.Module, step: int, tolerance: float) -> list[str]:
    """Names of parameters whose gradients are others than the whole batch's; each rank has a fourth of it."""
    torch.manual_seed(step)
    tokens = torch.randint(0, 10, (4 * SIZE, 5))
    for each, batch in ((alone, tokens), (trained, tokens[4 * RANK : 4 * RANK + 4])):
        each.zero_grad()
        each(batch).double().square().mean().backward()
    found = []
    for (name, wanted), parameter in zip(alone.named_parameters(), trained.parameters(), strict=True):
        assert wanted.grad is not None
        if not torch.allclose(parameter.grad.full_tensor(), wanted.grad, rtol=tolerance, atol=tolerance):
            found.append(f"{name}, step {step}")
    return found


def loans(comm: collectives.Communicator) -> bool:
    """Loans of ranks that miss different ones, and whether what is lent is symmetric and comes back."""
    lender, kept = Loans(comm), []
    for step in range(40):
        x = lender.lend((3, 5), torch.float32).fill_(RANK + step)
        comm.allreduce(x)
        assert bool((x == sum(range(SIZE)) + SIZE * step).all())
        lender.see(x)
        if RANK == 1 and step < 3:
            kept.append(x)  # for longer than others do
    del x
    kept.clear()
    lent = [lender.lend((15,), torch.float32) for _ in lender._made]
    found = sorted(each.data_ptr() for each in lent) == sorted(each.data_ptr() for each in lender._made)
    return found and 1 < len(lent) < 5 and lender.lend((0,), torch.int8).shape == (0,)


@contextmanager
def counted() -> Iterator[list[bool]]:
    """Whether each buffer that is lent meanwhile is symmetric memory."""
    seen, lend = [], Loans.lend

    def lends(self: Loans, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        x = lend(self, shape, dtype)
        seen.append(any(made.data_ptr() == x.data_ptr() for made in self._made))
        return x

    with patch.object(Loans, "lend", lends):
        yield seen


if __name__ == "__main__":
    torch.set_num_threads(1)
    init_process_group("treering", timeout=60)
    RANK, SIZE = dist.get_rank(), dist.get_world_size()
    over, alone = meshes(), model()
    for name, (way, backend) in CASES.items():
        trained = way(over[backend])
        tolerance = 1e-5 if way is mixed else 1e-13
        wrong = [each for step in range(3) for each in differing(trained, alone, step, tolerance)]
        with counted() as seen:
            wrong += differing(trained, alone, 3, tolerance)
        if RANK == 0:
            print(json.dumps({"case": name, "wrong": wrong, "symmetric": [sum(seen), len(seen)]}), flush=True)
    if loans(dist.group.WORLD.comm) and RANK == 0:  # type: ignore[union-attr]
        print("loans: right", flush=True)
