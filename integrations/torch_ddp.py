"""PyTorch DDP's gradients, averaged by treering.

    state = register(ddp_model)                                        # one line
    ddp_model.register_comm_hook(DDPHookState(), allreduce_hook)       # the same, PyTorch's own way

The average is the one that plain DDP computes. On two ranks a bucket is summed and halved in one pass, which gives the
bits of Gloo's two halvings and a sum (except that a subnormal gradient is not lost and a huge one does not overflow).
On other numbers of ranks each rank multiplies by 1/size and then all sum, as DDP's reducer does; what may differ from
Gloo there is the order of the sum, hence the last bit of gradients that are not sums of exact numbers.

All ranks hold the same bits after each bucket, and with a fixed table the same bits in each run.
"""

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import collectives
from collectives.errors import UnsupportedError
from integrations.torch_launch import by_mpi, communicator
from integrations.zero_copy import SharedBuckets, Wanted

if TYPE_CHECKING:
    from mpi4py import MPI

    from collectives.selection import Choice, Table

__all__ = ["BucketReport", "DDPHookState", "allreduce_hook", "register"]

Overlap = Literal["auto", "thread", "inline"]


class BucketReport(TypedDict):
    """What one bucket did: `bytes` of one call, `seconds` over all `calls`, waiting for slower ranks included.

    `storage` is that of the last call, "symmetric" or "ordinary".
    """

    bucket: int
    bytes: int
    dtype: str
    algorithm: str
    storage: str
    calls: int
    seconds: float


class DDPHookState:
    """The state of `allreduce_hook`: one model's communicator, its settings, and what its buckets did.

    The communicator is the state's own, a duplicate of `comm` (a `collectives.Communicator` or an mpi4py communicator)
    or, without one, of all ranks: no call of the user's can come between two buckets. Making a state is therefore
    collective: the ranks that train the model all make it, in the same order as other states. Where no MPI launcher
    has started the ranks (torchrun, say), all ranks are those of PyTorch's default process group, on one node.

    A state pickles, with its settings and without communicator and figures; a restored one makes a communicator over
    all ranks when its first bucket comes, whatever their number is then.

    `table` is a tuning table, or the path of one. `overlap`: "inline" communicates inside the hook; "auto" chooses,
    at present always "inline". `zero_copy`: True and "auto" move buckets into memory that the ranks of a node share,
    where an average is one pass; "auto" leaves them where that cannot be, False always. UnsupportedError names what is
    not to be had: `overlap="thread"`, `zero_copy=True` on several nodes, `compression`.
    """

    def __init__(
        self,
        comm: "collectives.Communicator | MPI.Intracomm | None" = None,
        *,
        table: "str | os.PathLike[str] | Table | None" = None,
        overlap: Overlap = "auto",
        zero_copy: Wanted = "auto",
        compression: str | None = None,
    ):
        _check_keywords(overlap, zero_copy, compression)
        self.table, self.overlap, self.zero_copy, self.compression = table, overlap, zero_copy, compression
        self._comm: collectives.Communicator | None = _own(comm, table)
        self._buckets: SharedBuckets | None = None
        self._reports: dict[tuple[int, int, torch.dtype], BucketReport] = {}

    @property
    def comm(self) -> "collectives.Communicator":
        """The state's own communicator. A restored state makes it here, which is collective."""
        if self._comm is None:
            self._comm = _own(None, self.table)
        return self._comm

    def average(self, bucket: torch.Tensor, index: int = 0) -> torch.Tensor:
        """Average a dense CPU tensor of floating-point or complex numbers over the ranks, in place, and return it.

        TypeError for sparse tensors, UnsupportedError for other devices, CollectiveError where communication failed.
        """
        comm, buckets = self.comm, self._shared_buckets()
        key = (index, bucket.nbytes if bucket.layout is torch.strided else 0, bucket.dtype)
        report = self._reports.get(key)
        try:
            if report is None:
                _check_bucket(bucket)
            start = time.perf_counter()
            if comm.size > 2:
                bucket.mul_(1 / comm.size)
            numbers = torch.view_as_real(bucket) if bucket.is_complex() else bucket
            buckets.see(numbers, index)
            comm.allreduce(numbers, op="sum" if comm.size > 2 else "avg")
            seconds = time.perf_counter() - start
        except Exception as error:
            shape = f"{bucket.numel()} elements of {str(bucket.dtype).removeprefix('torch.')}"
            error.add_note(f"rank {comm.rank} was averaging DDP's bucket {index}, {shape}")
            raise
        if report is None:
            report = self._reports[key] = _report(index, bucket, collectives.last_choice(comm))
        report["calls"] += 1
        report["storage"] = "symmetric" if buckets.symmetric(numbers, index) else "ordinary"
        report["seconds"] += seconds
        return bucket

    def _shared_buckets(self) -> SharedBuckets:
        if self._buckets is None:
            self._buckets = SharedBuckets(self.comm, self.zero_copy)
        return self._buckets

    def report(self) -> list[BucketReport]:
        """What each bucket did so far, by index. DDP rebuilds its buckets after the first step: those are rows too."""
        return [report.copy() for _, report in sorted(self._reports.items(), key=lambda item: item[0][:2])]

    def close(self) -> None:
        """Free the state's communicator. The model's next backward fails."""
        if self._comm is not None:
            self._comm.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("table", "overlap", "zero_copy", "compression")}

    def __setstate__(self, settings: Mapping[str, Any]) -> None:
        vars(self).update(settings, _comm=None, _buckets=None, _reports={})


def allreduce_hook(
    state: DDPHookState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The communication hook: average one bucket over the ranks of `state` before returning.

    What goes wrong is raised here, inside the backward pass, with its own type and traceback. (PyTorch would show an
    exception that is set on the future as "Unable to cast".)
    """
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(state.average(bucket.buffer(), bucket.index()))
    return future


def register(ddp_model: nn.Module, **keywords: Any) -> DDPHookState:
    """Let treering average the gradients of `ddp_model`. `keywords` are DDPHookState's, as is what this returns.

    Collective over the model's ranks. TypeError for other models and for modules that make sparse gradients,
    UnsupportedError for parameters that are not on the CPU, RuntimeError where the model has a hook already,
    ValueError where the communicator has other ranks than the model's process group.
    """
    if not isinstance(ddp_model, DistributedDataParallel):
        made = type(ddp_model).__name__
        raise TypeError(f"register takes a DistributedDataParallel model, not {made}: wrap it in DDP first")
    if ddp_model._comm_hooks:
        there = ddp_model._comm_hooks[0][0].__qualname__
        raise RuntimeError(
            f"this DDP model already has a communication hook, {there}, and PyTorch takes one: wrap the model anew to "
            "register treering's"
        )
    for name, module in ddp_model.module.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
            raise TypeError(f"{_SPARSE}; module {name or type(module).__name__} makes them: give it sparse=False")
    for name, parameter in ddp_model.module.named_parameters():
        if parameter.requires_grad and parameter.device.type != "cpu":
            raise UnsupportedError(_device_refusal(f"parameter {name}", parameter.device))
    state = DDPHookState(**keywords)
    group = ddp_model.process_group.size()
    if state.comm.size != group:
        size = state.comm.size
        state.close()
        raise ValueError(
            f"the model's process group has {group} ranks and the communicator {size}: pass comm=, a communicator of "
            "exactly the model's ranks (a communicator's split(...) makes one)"
        )
    ddp_model.register_comm_hook(state, allreduce_hook)
    return state


_SPARSE = "treering averages dense gradients, not sparse ones"


def _check_keywords(overlap: object, zero_copy: object, compression: object) -> None:
    if overlap not in ("auto", "thread", "inline"):
        raise ValueError(f'overlap is "auto", "thread" or "inline", not {overlap!r}')
    if zero_copy not in ("auto", True, False):
        raise ValueError(f'zero_copy is "auto", True or False, not {zero_copy!r}')
    if overlap == "thread":
        raise UnsupportedError('overlap="thread" is not supported yet; overlap="inline" communicates inside the hook')
    if compression is not None:
        raise UnsupportedError(
            f"compression={compression!r} is not supported; PyTorch's own wrapper serves: "
            "register_comm_hook(state, fp16_compress_wrapper(allreduce_hook))"
        )


def _check_bucket(bucket: torch.Tensor) -> None:
    if bucket.layout is not torch.strided:
        raise TypeError(
            f"{_SPARSE}: build the layer with sparse=False (nn.Embedding, nn.EmbeddingBag), or leave the hook out"
        )
    if bucket.device.type != "cpu":
        raise UnsupportedError(_device_refusal("a bucket", bucket.device))


def _device_refusal(what: str, device: torch.device) -> str:
    return f"{what} is on {device}, and treering's hook averages on the CPU: keep the model there, or plain DDP"


def _own(
    comm: "collectives.Communicator | MPI.Intracomm | None", table: "str | os.PathLike[str] | Table | None"
) -> "collectives.Communicator":
    """A communicator that nobody else uses, over the ranks of `comm`. Collective."""
    if isinstance(comm, collectives.Communicator):
        return cast("collectives.Communicator", comm.split(0, key=comm.rank, table=table))
    if comm is None and dist.is_initialized() and not by_mpi(os.environ):
        return communicator(table=table)
    return collectives.Communicator(comm, table=table)


def _report(index: int, bucket: torch.Tensor, choice: "Choice | None") -> BucketReport:
    algorithm = choice.algorithm if choice else ""
    dtype = str(bucket.dtype).removeprefix("torch.")
    return BucketReport(
        bucket=index, bytes=bucket.nbytes, dtype=dtype, algorithm=algorithm, storage="", calls=0, seconds=0.0
    )
