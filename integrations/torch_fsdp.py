"""FSDP2's collectives by treering, whatever backend its process groups have.

    from integrations.torch_fsdp import register
    model = fully_shard(model)                    # over Gloo, or over "treering"
    register(model)                               # gathers and reduce-scatters are treering's from here on

On one node their buffers are symmetric memory then, so that each is one pass over everybody's. With the backend
"treering" (torch_backend.py) FSDP2 and HSDP run as they are, too; what `register` adds there is that memory.

PyTorch's own `set_symm_mem_for_comm` is for CUDA alone, and `set_allocate_memory_from_process_group_for_comm` leaves no
place for ranks to agree on what they make, so neither is used.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from collectives.errors import UnsupportedError
from integrations.loans import Loans
from integrations.torch_backend import NAME, TreeringGroup

try:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
except ImportError as error:
    raise UnsupportedError(
        f"PyTorch {torch.__version__} lets nobody else serve FSDP2's collectives; "
        f'use the backend: init_process_group("{NAME}")'
    ) from error

__all__ = ["register"]

c10d: Any = dist.distributed_c10d


class Groups:
    """treering's own groups of the ranks of others, made at first use, and memory to lend of each.

    They are none of torch's: it names groups by how many a rank has, which is not the same on all ranks.
    """

    def __init__(self) -> None:
        self._made: dict[str, TreeringGroup] = {}
        self._loans: dict[TreeringGroup, Loans] = {}

    def of(self, group: Any) -> TreeringGroup:
        """Collective over the group's ranks at its first use."""
        if isinstance(group, TreeringGroup):
            return group
        name = str(group.group_name)
        if name not in self._made:
            store = c10d.PrefixStore(f"treering-fsdp/{name}/", c10d._get_default_store())
            self._made[name] = TreeringGroup(store, group.rank(), group.size(), dist.default_pg_timeout)
        return self._made[name]

    def loans(self, group: TreeringGroup) -> Loans:
        return self._loans.setdefault(group, Loans(group.comm))


class Ours:
    """One of FSDP2's collectives for one module, served by our group of the same ranks."""

    def __init__(self, groups: Groups):
        self.groups = groups
        self.loans: Loans | None = None  # of the group that the first call names

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if self.loans is None or device.type != "cpu":
            return torch.empty(*size, dtype=dtype, device=device)
        return self.loans.lend(size, dtype)

    def made(self, work: Any, group: TreeringGroup, whole: torch.Tensor) -> Any:
        """Behind a call on `whole`, which the other ranks look at."""
        self.loans = self.loans or self.groups.loans(group)
        self.loans.see(whole)
        return work


class Gather(Ours, AllGather):
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> Any:
        options = c10d.AllgatherOptions()
        options.asyncOp = async_op
        ours = self.groups.of(group)
        return self.made(ours._allgather_base(output_tensor, input_tensor, options), ours, output_tensor)


class Scatter(Ours, ReduceScatter):
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        options = c10d.ReduceScatterOptions()
        options.reduceOp, options.asyncOp = op, async_op
        ours = self.groups.of(group)
        return self.made(ours._reduce_scatter_base(output_tensor, input_tensor, options), ours, input_tensor)


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
        groups.of(replicas).comm.allreduce(gradient, op="avg")

    for module in sharded:
        module.set_custom_all_gather(Gather(groups))
        module.set_custom_reduce_scatter(Scatter(groups))
        if replicas is not None:
            module.set_all_reduce_hook(average)
