"""PyTorch DDP's gradients, averaged by treering.

    state = register(ddp_model)                                        # one line
    ddp_model.register_comm_hook(DDPHookState(), allreduce_hook)       # the same, PyTorch's own way

The average is the one that plain DDP computes. On two ranks a bucket is summed and halved in one pass, which gives the
bits of Gloo's two halvings and a sum (except that a subnormal gradient is not lost and a huge one does not overflow);
and so on any power of two of ranks, where the algorithm folds all of them at once. Otherwise each rank multiplies by
1/size and then all sum, as DDP's reducer does. On more than two ranks what may differ from Gloo is the order of the
sum, hence the last bit of gradients that are not sums of exact numbers.

All ranks hold the same bits after each bucket, and with a fixed table the same bits in each run.
"""

import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import collectives
from collectives.engine import Work
from collectives.errors import UnsupportedError
from collectives.tables.advice import Measured
from integrations.bucket_advice import advised
from integrations.buckets import SPARSE, Bucket, BucketReport, as_numbers, device_refusal
from integrations.overlap import Job, Mode, Overlap, Progress, Runner
from integrations.torch_ddp_cuda import GpuBuckets
from integrations.torch_launch import by_environment, communicator, over_mpi
from integrations.zero_copy import SharedBuckets, Wanted

if TYPE_CHECKING:
    from mpi4py import MPI

    from collectives.selection import Table

__all__ = ["BucketReport", "DDPHookState", "allreduce_hook", "register"]


class DDPHookState:
    """The state of `allreduce_hook`: one model's communicator, its settings, and what its buckets did.

    The communicator is the state's own, a duplicate of `comm` (a `collectives.Communicator` or an mpi4py communicator)
    or, without one, of all ranks: no call of the user's can come between two buckets. Making a state is therefore
    collective: the ranks that train the model all make it, in the same order as other states. Where no MPI launcher
    has started the ranks (torchrun, say), all ranks are those of PyTorch's default process group, on one node; where
    there is none yet, as when Lightning takes a strategy, they meet when the first bucket comes.

    A state pickles, with its settings and without communicator and figures; a restored one makes a communicator over
    all ranks when its first bucket comes, whatever their number is then.

    `table` is a tuning table, or the path of one. `overlap`: "inline" communicates in the training thread, without
    waiting before the backward pass ends; "thread" in a helper thread beside it; "auto" tries both for some steps on
    several nodes, and where every rank has a core that its torch threads leave free, takes the faster one, and is
    "inline" elsewhere.
    `zero_copy`: True and "auto" move buckets into memory that the ranks of a node share, where an average is one pass;
    "auto" leaves them where that cannot be, False always. UnsupportedError names what is not to be had:
    `overlap="thread"` where MPI allows one thread only, `zero_copy=True` on several nodes, `compression`.
    """

    table: "str | os.PathLike[str] | Table | None"
    overlap: Overlap
    zero_copy: Wanted
    compression: str | None
    advised: Measured | None  # by the table, for a model with the advised bucket size
    _comm: "collectives.Communicator | None"
    _shared: SharedBuckets
    _progress: Progress
    _buckets: dict[tuple[int, int, torch.dtype], Bucket]
    _jobs: list[Job]  # of this step, begun and not finished
    _runner: Runner  # of this step
    _in_tasks: set[int]  # autograd's graph tasks that will call finish
    _first: float  # when the first bucket came
    _last: float  # when the last one was done
    _step_began: float
    _on_gpu: GpuBuckets

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
        settings = {"table": table, "overlap": overlap, "zero_copy": zero_copy, "compression": compression}
        self.__setstate__(settings)
        if comm is not None or dist.is_initialized() or over_mpi() or not by_environment(os.environ):
            self._open(comm)

    def _open(self, comm: "collectives.Communicator | MPI.Intracomm | None") -> "collectives.Communicator":
        self._comm = made = _own(comm, self.table)
        made._channel.stamp()
        self._shared = SharedBuckets(made, self.zero_copy)
        self._progress = Progress(self.overlap, made)
        return made

    @property
    def comm(self) -> "collectives.Communicator":
        """The state's own communicator. A restored state makes it here, which is collective."""
        return self._comm or self._open(None)

    @property
    def mode(self) -> Mode:
        """How the next step's buckets are averaged."""
        self.comm  # noqa: B018 - a restored state's is made here
        return self._progress.mode

    @property
    def settling(self) -> bool:
        """Whether overlap="auto" is still trying out what is faster."""
        self.comm  # noqa: B018 - as above
        return self._progress.settling

    # ------------------------------------------------------------ averaging
    def average(self, bucket: torch.Tensor, index: int = 0) -> torch.Tensor:
        """Average a dense CPU tensor of floating-point or complex numbers over the ranks, in place, and return it.

        TypeError for sparse tensors, UnsupportedError for other devices, CollectiveError where communication failed.
        """
        self.begin(bucket, index)
        self.finish()
        return bucket

    def begin(
        self, tensor: torch.Tensor, index: int = 0, future: "torch.futures.Future[torch.Tensor] | None" = None
    ) -> None:
        """Start averaging; `finish` ends it, and completes the future with the tensor. Errors as of `average`."""
        start = time.perf_counter()
        job: Job | None = None
        try:
            self.comm  # noqa: B018 - a restored state's is made here
            job = Job(self._bucket(tensor, index), tensor, self._submit, future)
            if not self._jobs:
                self._step_began, self._runner = start, self._progress.runner()
            self._first = self._first or start
            with _range("begin", job.bucket):
                self._runner.begin(job)
        except Exception as error:
            self._explain(error, tensor, index)
            raise
        job.waited += time.perf_counter() - start
        self._jobs.append(job)

    def finish(self) -> None:
        """Wait for what has begun. Raises what made it fail."""
        jobs, self._jobs = self._jobs, []
        self._in_tasks.clear()
        for job in jobs:
            start = time.perf_counter()
            try:
                with _range("wait for", job.bucket):
                    self._runner.finish(job)
            except Exception as error:
                self._explain(error, job.tensor, job.bucket.index)
                raise
            job.waited += time.perf_counter() - start
            self._note(job)
            if job.future is not None:
                job.future.set_result(job.tensor)
        if jobs:
            self._last = time.perf_counter()
            self._progress.took(self._last - self._step_began)

    def finish_after_backward(self) -> None:
        """Finish when the backward pass that runs now has ended, before DDP looks at its buckets; or now, without one.

        DDP looks in a callback of autograd's engine that it queues when its last bucket has begun: this one is earlier.
        With no node running it looks at once: where a rank joins others' steps, and at a static graph's first step.
        """
        task = torch._C._current_graph_task_id()
        if torch._C._current_autograd_node() is None:
            self.finish()
        elif task not in self._in_tasks:
            self._in_tasks.add(task)
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)

    def _submit(self, job: Job) -> Work:
        """Start a job's call, in the thread that is to do it."""
        bucket, comm = job.bucket, self.comm
        if bucket.scale is not None:
            job.tensor.mul_(bucket.scale)
        numbers = as_numbers(job.tensor)
        self._shared.see(numbers, bucket.index)
        work: Work = comm.allreduce(numbers, op=bucket.op, blocking=False, **bucket.how)
        choice = collectives.last_choice(comm)
        bucket.algorithm = choice.algorithm if choice else ""
        return work

    def _bucket(self, tensor: torch.Tensor, index: int) -> Bucket:
        key = (index, tensor.nbytes if tensor.layout is torch.strided else 0, tensor.dtype)
        if key not in self._buckets:
            self._buckets[key] = Bucket(self.comm, tensor, index, self.advised)
        return self._buckets[key]

    def _note(self, job: Job) -> None:
        bucket = job.bucket
        bucket.calls += 1
        bucket.waited += job.waited
        bucket.seconds += job.seconds or job.waited
        if job.work is not None and job.work.program.choices is not None:
            bucket.algorithm = job.work.program.choices.ran(job.work.program).algorithm
        shared = self._shared.symmetric(as_numbers(job.tensor), bucket.index)
        bucket.storage = "symmetric" if shared else "ordinary"
        if job.work is not None and self.comm.size > 1 and len(self.comm.topology.nodes) == 1:
            bucket.came(job.work.channel.arrivals(job.work.sequence))

    def _explain(self, error: Exception, tensor: torch.Tensor, index: int) -> None:
        shape = f"{tensor.numel()} elements of {str(tensor.dtype).removeprefix('torch.')}"
        rank = self._comm.rank if self._comm is not None else "?"
        error.add_note(f"rank {rank} was averaging DDP's bucket {index}, {shape}")

    # ------------------------------------------------------------ the rest
    def report(self) -> list[BucketReport]:
        """What each bucket did so far, by index. DDP rebuilds its buckets after the first step: those are rows too."""
        elapsed = self._last - self._first
        return [bucket.report(elapsed) for _, bucket in sorted(self._buckets.items(), key=lambda item: item[0][:2])]

    def close(self) -> None:
        """Free the state's communicator, when what has begun is done. The model's next backward fails."""
        if self._comm is not None:
            self._progress.stop()
            self._comm.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("table", "overlap", "zero_copy", "compression")}

    def __setstate__(self, settings: Mapping[str, Any]) -> None:
        vars(self).update(settings)
        self._comm, self._buckets, self._jobs, self._in_tasks = None, {}, [], set()
        self._first, self._last, self.advised = 0.0, 0.0, None
        self._on_gpu = GpuBuckets()


def allreduce_hook(
    state: DDPHookState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The communication hook: begin to average one bucket over the ranks of `state`.

    It is done when the backward pass has ended. What goes wrong is raised here or there, so by `backward()`, with its
    own type and traceback. (PyTorch would show an exception that is set on the future as "Unable to cast".)
    """
    tensor = bucket.buffer()
    if tensor.is_cuda:
        return cast("torch.futures.Future[torch.Tensor]", state._on_gpu.begin(state.comm, tensor))
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    state.begin(tensor, bucket.index(), future)
    state.finish_after_backward()
    return future


def register(ddp_model: nn.Module, **keywords: Any) -> DDPHookState:
    """Let treering average the gradients of `ddp_model`. `keywords` are DDPHookState's, as is what this returns.

    Collective over the model's ranks. Rank 0 says where the tuning table knows a `bucket_cap_mb` with which this
    model's steps were faster (`treering tune --ddp`).

    TypeError for other models and for modules that make sparse gradients, UnsupportedError for parameters that are
    neither on the CPU nor on an NVIDIA GPU, RuntimeError where the model has a hook already, ValueError where the
    communicator has other ranks than the model's process group.
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
            raise TypeError(f"{SPARSE}; module {name or type(module).__name__} makes them: give it sparse=False")
    for name, parameter in ddp_model.module.named_parameters():
        if parameter.requires_grad and parameter.device.type not in ("cpu", "cuda"):
            raise UnsupportedError(device_refusal(f"parameter {name}", parameter.device))
    state = DDPHookState(**keywords)
    group = ddp_model.process_group.size()
    if state.comm.size != group:
        size = state.comm.size
        state.close()
        raise ValueError(
            f"the model's process group has {group} ranks and the communicator {size}: pass comm=, a communicator of "
            "exactly the model's ranks (a communicator's split(...) makes one)"
        )
    state.advised = advised(state.comm, ddp_model)
    ddp_model.register_comm_hook(state, allreduce_hook)
    return state


def _check_keywords(overlap: object, zero_copy: object, compression: object) -> None:
    if overlap not in ("auto", "thread", "inline"):
        raise ValueError(f'overlap is "auto", "thread" or "inline", not {overlap!r}')
    if zero_copy not in ("auto", True, False):
        raise ValueError(f'zero_copy is "auto", True or False, not {zero_copy!r}')
    if compression is not None:
        raise UnsupportedError(
            f"compression={compression!r} is not supported; PyTorch's own wrapper serves: "
            "register_comm_hook(state, fp16_compress_wrapper(allreduce_hook))"
        )


def _own(
    comm: "collectives.Communicator | MPI.Intracomm | None", table: "str | os.PathLike[str] | Table | None"
) -> "collectives.Communicator":
    """A communicator that nobody else uses, over the ranks of `comm`. Collective."""
    if isinstance(comm, collectives.Communicator):
        return cast("collectives.Communicator", comm.split(0, key=comm.rank, table=table))
    if comm is None and dist.is_initialized() and not over_mpi():
        return communicator(table=table)
    return collectives.Communicator(comm, table=table)


def _range(doing: str, bucket: Bucket) -> AbstractContextManager[Any]:
    """A range of torch.profiler, where one is active."""
    if not torch._C._autograd._profiler_enabled():
        return nullcontext()
    name = f"treering: {doing} bucket {bucket.index}, allreduce {bucket.algorithm or 'not chosen yet'}"
    return torch.profiler.record_function(f"{name}, {bucket.bytes} bytes")
