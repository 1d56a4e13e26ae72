"""FSDP2 over treering where its process group is another backend's.

    from integrations.torch_fsdp import register
    model = fully_shard(model)                    # over Gloo, say
    register(model)                               # gathers and reduce-scatters are treering's from here on

With the backend "treering" (torch_backend.py) nothing of this is needed: FSDP2 and HSDP run on it as they are.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from collectives.errors import UnsupportedError
from integrations.torch_backend import NAME

try:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
except ImportError as error:
    raise UnsupportedError(
        f"PyTorch {torch.__version__} lets nobody else serve FSDP2's collectives; "
        f'use the backend: init_process_group("{NAME}")'
    ) from error

__all__ = ["register"]

gather_into = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its newer name
reduce_into = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class Groups:
    """treering's own groups of the ranks of others, made at first use."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, ...], Any] = {}

    def of(self, group: Any) -> Any:
        """Collective over the group's ranks at its first use."""
        ranks = tuple(dist.get_process_group_ranks(group))
        if ranks not in self._made:
            self._made[ranks] = dist.new_group(list(ranks), backend=NAME, use_local_synchronization=True)
        return self._made[ranks]


class Ours:
    """One of FSDP2's collectives, served by our group of the same ranks."""

    def __init__(self, groups: Groups):
        self.groups = groups

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class Gather(Ours, AllGather):
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> Any:
        return gather_into(output_tensor, input_tensor, self.groups.of(group), async_op)


class Scatter(Ours, ReduceScatter):
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        return reduce_into(output_tensor, input_tensor, op, self.groups.of(group), async_op)


def register(model: nn.Module, replicas: Any = None) -> None:
    """Let treering gather the parameters and reduce the gradients of all that `fully_shard` has sharded in `model`.

    replicas: a process group of the ranks that hold the same shard. Their gradients are averaged too, as HSDP's are;
    the model is then sharded over a mesh of one dimension, since with two FSDP2 averages by itself, over its own group.

    Collective, at the first step. TypeError where nothing is sharded, UnsupportedError on a PyTorch that cannot.
    """
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not sharded:
        raise TypeError("register takes a model to which fully_shard has been applied; nothing in this one is sharded")
    groups = Groups()

    def average(gradient: torch.Tensor) -> None:
        dist.all_reduce(gradient, dist.ReduceOp.AVG, groups.of(replicas))

    for module in sharded:
        module.set_custom_all_gather(Gather(groups))
        module.set_custom_reduce_scatter(Scatter(groups))
        if replicas is not None:
            module.set_all_reduce_hook(average)
