"""A backend of torch.distributed, for tensors on the CPU: `import integrations.torch_backend`, then

    dist.init_process_group("treering")           # under torchrun; ranks of one node need no MPI
    torch_launch.init_process_group("treering")   # under mpirun, srun and torchrun alike; imports this by itself

Every call is the communicator's own (`Communicator.allreduce` and so on), so its promises hold: ranks agree bitwise,
and what is wrong is an error that says so. Calls on one group run in the order in which they were made; send and recv
are apart from them (messages.py). A group makes its communicator at once, which is collective over its ranks.

Tensors may lie in memory as they like. Complex numbers are reduced as pairs, booleans as numbers of 8 bits; float8 and
what else has 8 bits can be moved, and not reduced. Tensors of other devices, and sparse ones, are refused.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from collectives import buffers
from collectives.errors import UnsupportedError
from integrations.messages import Office
from integrations.shared_gradients import SharedGradients
from integrations.torch_launch import communicator_of
from integrations.torch_works import Done, Keeper, Pending

__all__ = ["NAME", "TreeringGroup"]

NAME = "treering"
KINDS: Any = dist.ReduceOp.RedOpType
OPERATIONS = {
    int(kind): name
    for kind, name in (
        (KINDS.SUM, "sum"), (KINDS.AVG, "avg"), (KINDS.PRODUCT, "prod"), (KINDS.MIN, "min"), (KINDS.MAX, "max"),
        (KINDS.BAND, "and"), (KINDS.BOR, "or"), (KINDS.BXOR, "xor"),
    )
}  # fmt: skip
OF_BOOLEANS = {"sum": "max", "prod": "min", "min": "min", "max": "max", "and": "and", "or": "or", "xor": "xor"}
OF_COMPLEX = ("sum", "avg")
Works = Done | Pending
Call = partial[Any]
Base: Any = dist.ProcessGroup  # whose annotations are of every form that a caller may choose


class TreeringGroup(Base):  # type: ignore[misc]
    """A process group whose calls are those of a communicator, `comm`. Methods are those of torch's process groups.

    Errors are the communicator's: TypeError, ValueError and UnsupportedError for arguments, at once; MismatchError,
    CollectiveTimeout, PeerLost when a call runs, which for one that does not block is when it is waited for.
    """

    supports_coalescing = supports_splitting = supports_shrinking = False
    supports_time_estimate = False

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta):
        super().__init__(rank, size)
        seconds = timeout.total_seconds()
        self.comm = communicator_of(store, rank, size, timeout=seconds)
        self._office = Office.of(self.comm, seconds)
        self._keeper = Keeper()
        self._gradients = SharedGradients(self.comm)
        self._done = Done()  # of calls that end before they return, whose caller keeps nothing of them
        self._name, self._desc = "", NAME

    # ------------------------------------------------------------ what torch asks of a group
    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return NAME

    def _set_group_name(self, name: str) -> None:
        self._name = str(name)

    def _set_group_desc(self, desc: str) -> None:
        self._desc = str(desc)

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def pg_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._desc

    def _get_backend(self, device: torch.device) -> "TreeringGroup":
        if torch.device(device).type != "cpu":
            raise UnsupportedError(f"the backend {NAME} serves the CPU, not {device}: add one for it, as cuda:nccl")
        return self

    def supports_tensor_alloc(self, device: torch.device) -> bool:  # noqa: ARG002 - torch's interface
        return False

    def shutdown(self) -> None:
        """Let all calls end, and free what the group holds. Collective."""
        self._keeper.stop()
        self._office.close()
        self.comm.close()

    # ------------------------------------------------------------ reductions
    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Works:
        (x,) = tensors
        if (op := OPERATIONS.get(hash(opts.reduceOp)) if opts is not None else "sum") and x.dtype in PLAIN:
            if op == "sum":
                self._gradients.see(x)
            if not waits(opts):
                self.comm.allreduce(x, op=op)
                return self._done
            return self._later([self.comm.allreduce(x, op=op, blocking=False)], tensors)
        numbers, op = reducible(x, opts)
        return self._go(opts, tensors, [partial(self.comm.allreduce, numbers, op=op)])

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Works:
        calls: dict[str, list[Tensor]] = {}
        for x in tensors:
            numbers, op = reducible(x, opts)
            calls.setdefault(op, []).append(numbers)
        return self._go(opts, tensors, [partial(self.comm.allreduce, xs, op=op) for op, xs in calls.items()])

    def reduce(self, tensors: list[Tensor], opts: Any) -> Works:
        numbers, op = reducible(one(tensors), opts)
        return self._go(opts, tensors, [partial(self.comm.reduce, numbers, root=opts.rootRank, op=op)])

    def _reduce_scatter_base(self, out: Tensor, x: Tensor, opts: Any = None) -> Works:
        if x.dtype in PLAIN and not waits(opts) and (op := OPERATIONS.get(hash(opts.reduceOp))):
            self._fits(x, "input", out, "output")
            self.comm.reduce_scatter(apart(x, out), out=out, op=op)
            return self._done
        return self.reduce_scatter_tensor_coalesced([out], [x], opts)

    def reduce_scatter_tensor_coalesced(self, outs: list[Tensor], xs: list[Tensor], opts: Any = None) -> Works:
        calls = []
        for out, x in zip(outs, xs, strict=True):
            self._fits(x, "input", out, "output")
            numbers, op = reducible(apart(x, out), opts)
            calls.append(partial(self.comm.reduce_scatter, numbers, out=movable(out), op=op))
        return self._go(opts, outs, calls)

    def reduce_scatter(self, outs: list[Tensor], xs: list[list[Tensor]], opts: Any = None) -> Works:
        out, parts = one(outs), one(xs)
        self._each(parts, "input_list")
        if alike(parts):
            return self._reduce_scatter_base(out, joined(parts), opts)
        calls = []  # a reduction to each rank, whose part has a length of its own
        for rank, part in enumerate(parts):
            numbers, op = reducible(part, opts)
            mine = movable(out) if rank == self.comm.rank else None
            calls.append(partial(self.comm.reduce, numbers, root=rank, out=mine, op=op))
        return self._go(opts, outs, calls)

    # ------------------------------------------------------------ moves
    def broadcast(self, tensors: list[Tensor], opts: Any) -> Works:
        return self._go(opts, tensors, [partial(self.comm.broadcast, movable(one(tensors)), root=opts.rootRank)])

    def _allgather_base(self, out: Tensor, x: Tensor, opts: Any = None) -> Works:
        if x.dtype in PLAIN and not waits(opts):
            self._fits(out, "output", x, "input")
            self.comm.allgather(x, out=out)
            return self._done
        return self.allgather_into_tensor_coalesced([out], [x], opts)

    def allgather_into_tensor_coalesced(self, outs: list[Tensor], xs: list[Tensor], opts: Any = None) -> Works:
        calls = []
        for out, x in zip(outs, xs, strict=True):
            self._fits(out, "output", x, "input")
            calls.append(partial(self.comm.allgather, movable(x), out=movable(out)))
        return self._go(opts, outs, calls)

    def allgather(self, outs: list[list[Tensor]], xs: list[Tensor], opts: Any = None) -> Works:
        return self._into_lists([one(outs)], [one(xs)], opts)

    def allgather_coalesced(self, outs: list[list[Tensor]], xs: list[Tensor], opts: Any = None) -> Works:
        """outs[rank][i] is what rank has in xs[i]."""
        self._each(outs, "output_tensor_lists")
        return self._into_lists([list(each) for each in zip(*outs, strict=True)], xs, opts)

    def _into_lists(self, lists: list[list[Tensor]], xs: list[Tensor], opts: Any) -> Works:
        calls: list[Call] = []
        gathered: list[tuple[Tensor, list[Tensor]]] = []
        for parts, x in zip(lists, xs, strict=True):
            self._each(parts, "tensor_list")
            if alike([*parts, x]):
                flat = torch.empty(len(parts) * x.numel(), dtype=x.dtype)
                calls.append(partial(self.comm.allgather, movable(x), out=movable(flat)))
                gathered.append((flat, parts))
            else:  # a broadcast from each rank, whose tensor has a length of its own
                parts[self.comm.rank].copy_(x.reshape(parts[self.comm.rank].shape))
                calls += [partial(self.comm.broadcast, movable(part), root=rank) for rank, part in enumerate(parts)]

        def finish() -> None:
            for flat, parts in gathered:
                share_out(flat, parts)

        return self._go(opts, [part for parts in lists for part in parts], calls, finish)

    def gather(self, outs: list[list[Tensor]], xs: list[Tensor], opts: Any) -> Works:
        x, root = one(xs), opts.rootRank
        if self.comm.rank != root:
            return self._go(opts, [], [partial(self.comm.gather, movable(x), root=root)])
        parts = one(outs)
        self._each(parts, "gather_list")
        if not alike([*parts, x]):
            raise ValueError("gather_list has tensors of another length than this rank's; gather takes equal ones")
        flat = torch.empty(len(parts) * x.numel(), dtype=x.dtype)
        call = partial(self.comm.gather, movable(x), out=movable(flat), root=root)
        return self._go(opts, parts, [call], lambda: share_out(flat, parts))

    def scatter(self, outs: list[Tensor], xs: list[list[Tensor]], opts: Any) -> Works:
        out, root = one(outs), opts.rootRank
        flat = None
        if self.comm.rank == root:
            parts = one(xs)
            self._each(parts, "scatter_list")
            if not alike([*parts, out]):
                raise ValueError("scatter_list has tensors of another length than the output; scatter takes equal ones")
            flat = movable(joined(parts))
        return self._go(opts, outs, [partial(self.comm.scatter, flat, out=movable(out), root=root)])

    def alltoall_base(
        self, out: Tensor, x: Tensor, out_splits: Sequence[int], in_splits: Sequence[int], opts: Any = None
    ) -> Works:
        """Splits are of the first dimension; none of them: equal blocks."""
        if not out_splits and not in_splits:
            for tensor, name in ((out, "output"), (x, "input")):
                if tensor.dim() and tensor.shape[0] % self.comm.size:
                    rows = tensor.shape[0]
                    raise ValueError(f"{name} has {rows} rows, which {self.comm.size} ranks cannot share; give splits")
            return self._go(opts, [out], [partial(self.comm.alltoall, movable(x), out=movable(out))])
        sends, receives = self._counts(x, in_splits, "input"), self._counts(out, out_splits, "output")
        call = partial(self.comm.alltoall, movable(x), movable(out), sends, receives)
        return self._go(opts, [out], [call])

    def alltoall(self, outs: list[Tensor], xs: list[Tensor], opts: Any = None) -> Works:
        self._each(outs, "output_tensor_list")
        self._each(xs, "input_tensor_list")
        flat, x = torch.empty(sum(out.numel() for out in outs), dtype=xs[0].dtype), joined(xs)
        sends, receives = ([movable(each).numel() for each in tensors] for tensors in (xs, outs))
        call = partial(self.comm.alltoall, movable(x), movable(flat), sends, receives)
        return self._go(opts, outs, [call], lambda: share_out(flat, outs))

    def barrier(self, opts: Any = None) -> Works:
        limit = opts.timeout.total_seconds() if opts is not None else 0.0
        return self._go(opts, [], [partial(self.comm.barrier, timeout=limit if limit > 0 else None)])

    # newer names for the same
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    # ------------------------------------------------------------ messages
    def send(self, tensors: list[Tensor], rank: int, tag: int) -> Works:
        view = buffers.view(movable(one(tensors)))
        work = Pending(self._keeper, [self._office.send(view, rank, tag)], tensors)
        if not work.is_completed():
            self._keeper.see_to(work)
        return work

    def recv(self, tensors: list[Tensor], rank: int | None, tag: int) -> Works:
        view = buffers.view(movable(one(tensors)), writes=True)
        return Pending(self._keeper, [self._office.receive(view, rank, tag)], tensors, view.restore)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Works:
        return self.recv(tensors, None, tag)

    # ------------------------------------------------------------ coalescing: each call is made as it comes
    def _start_coalescing(self, device: torch.device) -> None: ...

    def _end_coalescing(self, device: torch.device) -> Works:  # noqa: ARG002 - torch's interface
        return Done()

    # ------------------------------------------------------------ parts of them
    def _go(
        self, opts: Any, tensors: list[Tensor], calls: Sequence[Call], finish: Callable[[], None] = lambda: None
    ) -> Works:
        if waits(opts):
            return self._later([call(blocking=False) for call in calls], tensors, finish)
        for call in calls:
            call()
        finish()
        return Done(tensors)

    def _later(
        self, parts: Sequence[Any], tensors: Sequence[Tensor], finish: Callable[[], None] = lambda: None
    ) -> Pending:
        """What has begun goes as far as it can without waiting, so that the caller's next work hides what is left."""
        work = Pending(self._keeper, parts, tensors, finish)
        work.is_completed()
        return work

    def _each(self, parts: Sequence[Any], name: str) -> None:
        if len(parts) != self.comm.size:
            ranks = self.comm.size
            raise ValueError(f"{name} has {len(parts)} entries, and the group {ranks} ranks; give one for each")

    def _fits(self, whole: Tensor, name: str, part: Tensor, part_name: str) -> None:
        if whole.numel() != self.comm.size * part.numel():
            raise ValueError(
                f"{name} has {whole.numel()} elements, and {part_name} {part.numel()}, which is not one of "
                f"{self.comm.size} equal parts of it"
            )
        if whole.dtype != part.dtype:
            raise TypeError(f"{name} has dtype {whole.dtype}, and {part_name} {part.dtype}; give both the same")

    def _counts(self, tensor: Tensor, splits: Sequence[int], name: str) -> list[int]:
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            splits = [rows // self.comm.size] * self.comm.size
        self._each(splits, f"{name}_split_sizes")
        if sum(splits) != rows:
            raise ValueError(f"{name}_split_sizes add up to {sum(splits)}, and {name} has {rows} rows")
        flat = movable(tensor)
        row = flat.numel() // rows if rows else 0
        return [row * split for split in splits]


PLAIN = frozenset(buffers.torch_dtypes())  # what a communicator reduces as it is


def waits(opts: Any) -> bool:
    """Whether the caller means to wait by itself, later."""
    return opts is None or getattr(opts, "asyncOp", True)


def movable(x: Tensor) -> Tensor:
    """The same memory in a dtype that a communicator moves."""
    if x.dtype in PLAIN or x.layout is not torch.strided:
        return x
    if x.is_complex():
        return torch.view_as_real(x.resolve_conj())
    return x.view(torch.uint8) if x.element_size() == 1 else x


def reducible(x: Tensor, opts: Any) -> tuple[Tensor, str]:
    """The same memory in a dtype that a communicator reduces, and the operation on it. TypeError, UnsupportedError."""
    op = "sum" if opts is None else OPERATIONS.get(hash(opts.reduceOp))
    if op is None:
        raise UnsupportedError(f"the backend {NAME} reduces by {', '.join(OPERATIONS.values())}; scale, then sum")
    if x.dtype is torch.bool:
        if op not in OF_BOOLEANS:
            raise TypeError(f"{op} of booleans is no boolean; convert them to numbers first")
        return x.view(torch.uint8), OF_BOOLEANS[op]
    if x.is_complex():
        if op not in OF_COMPLEX:
            raise TypeError(f"{op} of complex numbers is not served; {' and '.join(OF_COMPLEX)} are")
        return torch.view_as_real(x.resolve_conj()), op
    return x, op


def one(things: Sequence[Any]) -> Any:
    if len(things) != 1:
        raise ValueError(f"{len(things)} tensors were given, one for each of several devices; give one")
    return things[0]


def alike(tensors: Sequence[Tensor]) -> bool:
    """Of one length. TypeError unless they are of one dtype."""
    if len({each.dtype for each in tensors}) > 1:
        raise TypeError(f"tensors of {len({each.dtype for each in tensors})} dtypes were given; give all the same")
    return len({each.numel() for each in tensors}) == 1


def joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([each.reshape(-1) for each in tensors])


def share_out(flat: Tensor, parts: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for piece, part in zip(flat.split([part.numel() for part in parts]), parts, strict=True):
            part.copy_(piece.view(part.shape))


def apart(x: Tensor, out: Tensor) -> Tensor:
    """x, or a copy where out is a part of its storage."""
    inside = x.layout is torch.strided and x.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
    return x.clone() if inside else x


def _make(store: Any, rank: int, size: int, timeout: timedelta) -> TreeringGroup:
    return TreeringGroup(store, rank, size, timeout)


dist.Backend.register_backend(NAME, _make, devices=["cpu"])
