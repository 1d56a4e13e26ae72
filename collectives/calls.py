"""From a method's arguments to a call that is ready to run: memory looked at, algorithm chosen, program found."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import index
from typing import Any, NamedTuple

from collectives import buffers
from collectives.buffers import View
from collectives.counts import Counts, checked, told
from collectives.dtypes import HALVES, ITEMSIZE, check
from collectives.engine import Prepared
from collectives.errors import UnsupportedError
from collectives.extents import chunk_offsets
from collectives.flight.diagnosis import NO_OP
from collectives.native.program import Program
from collectives.plans import Plans
from collectives.selection import NATIVE, ONE_PASS, Choice
from collectives.settings import Settings, folds_once
from collectives.staging import Packed, Widened
from collectives.tables.table import ORDINARY, STORAGES, SYMMETRIC

ORDERS, PRECISIONS = (None, "fixed"), (None, "fast", "accurate")
PLANNED = {  # what a plan may be of: what its method takes beside x, by position
    "allreduce": ("out", "op"), "reduce_scatter": ("out", "op"), "allgather": ("out",), "broadcast": ("root",),
    "reduce": ("root", "out", "op"), "gather": ("out", "root", "count"), "scatter": ("out", "root", "count"),
    "alltoall": ("out", "send_counts", "recv_counts"),
}  # fmt: skip

__all__ = ["Calls", "Options", "Prepared"]


@dataclass
class Options:
    """How a call is to be served. ValueError for an order or precision that does not exist."""

    algorithm: str | None
    order: str | None
    precision: str | None
    params: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order={self.order!r}; it is None or 'fixed'")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision={self.precision!r}; it is None, 'fast' or 'accurate'")

    @classmethod
    def of(cls, how: dict[str, Any]) -> "Options":
        """From a method's keywords; what is no option is a parameter of the algorithm."""
        algorithm, order, precision = (how.pop(name, None) for name in ("algorithm", "order", "precision"))
        return cls(algorithm, order, precision, how)


class Choices(NamedTuple):
    """What serves a call on ordinary memory, and what on symmetric memory."""

    ordinary: Choice
    symmetric: Choice

    def ran(self, program: Program) -> Choice:
        """Which of them the program's last call was."""
        return self.symmetric if program.one_pass else self.ordinary


class Calls:
    """Prepares the calls of one communicator."""

    def __init__(self, plans: Plans, settings: Settings):
        self.plans, self.settings = plans, settings
        self.rank, self.size = plans.rank, plans.topology.ranks
        self._barrier: Prepared | None = None

    def choose(
        self,
        collective: str,
        count: int,
        dtype: str,
        op: str,
        options: Options,
        native: bool = False,
        storage: str = ORDINARY,
    ) -> Choice:
        """Which algorithm serves, and why; `native` if the MPI library's own may."""
        nbytes, fixed = count * ITEMSIZE[dtype], options.order == "fixed"
        native = native and self.plans.channel.comm.mpi is not None
        chosen = self.settings.choose(
            self.plans.topology, collective, nbytes, dtype, op, options.algorithm, options.params, fixed,
            native, storage if self.plans.on_one_node else ORDINARY,
        )  # fmt: skip
        if chosen.algorithm == NATIVE and not native:
            raise UnsupportedError(f"{collective} by the MPI library itself is asked for by native=True")
        if storage == SYMMETRIC and self.plans.levels_share(collective, chosen.algorithm, chosen.params):
            return chosen.adding("within nodes it reads and writes symmetric memory")
        return chosen

    def choices(self, collective: str, count: int, dtype: str, op: str, options: Options) -> Choices:
        """What serves on either kind of storage: all ranks choose alike, whatever memory each of them has."""
        return Choices(*(self.choose(collective, count, dtype, op, options, storage=kind) for kind in STORAGES))

    def prepare(self, collective: str, x: Any, arguments: Mapping[str, Any], options: Options) -> Prepared:
        """The call of the method of this name. arguments: what `planned` has found."""
        found: Prepared = getattr(self, collective)(x, *arguments.values(), options)
        return found

    # ------------------------------------------------------------ one collective each
    def allreduce(self, x: Any, out: Any, op: str, options: Options) -> Prepared:
        source, target, result = self.pair(x, out, op)
        choice = self.choices("allreduce", target.count, target.dtype, op, options)
        if self._must_widen("allreduce", choice, target.dtype, options):
            wide = Widened(source, target)
            prepared = self._prepared("allreduce", wide.view, wide.view, target.count, op, 0, choice, result)
            prepared.keep, prepared.finish = (wide, prepared.keep), wide.finish
            return prepared
        return self._prepared("allreduce", source, target, target.count, op, 0, choice, result)

    def prefers_native(self, x: Any, out: Any, op: str, options: Options) -> Choice | None:
        """The choice, if the table's rule for this allreduce names the MPI library's own."""
        if not self.settings.allows_native:
            return None
        target, _, _ = self.pair(x, out, op)
        choice = self.choose("allreduce", target.count, target.dtype, op, options, native=True)
        return choice if choice.algorithm == NATIVE else None

    def pair(self, x: Any, out: Any, op: str) -> tuple[View, View, Any]:
        """Source and target of an allreduce, which are one where it is in place, and what it returns."""
        target = buffers.view(x if out is None else out, "x" if out is None else "out", writes=True)
        source = target if out is None else buffers.view(x)
        check(source.dtype, op)
        expect(target, source.count, source.dtype, "x")
        if source.address != target.address:
            apart(source, target)
        return source, target, x if out is None else out

    def coalesced(self, xs: Sequence[Any], op: str, options: Options) -> list[Prepared]:
        """Several arrays, in place, packed into one message for each dtype."""
        views = [buffers.view(x, f"x[{i}]", writes=True) for i, x in enumerate(xs)]
        for each in views:
            check(each.dtype, op)
        calls = []
        for dtype in dict.fromkeys(each.dtype for each in views):
            packed = Packed([each for each in views if each.dtype == dtype])
            choice = self.choices("allreduce", packed.view.count, dtype, op, options)
            source, finish = packed.view, packed.finish
            if self._must_widen("allreduce", choice, dtype, options):
                wide = Widened(packed.view, packed.view)
                source, finish = wide.view, partial(both, wide.finish, packed.finish)
            prepared = self._prepared("allreduce", source, source, source.count, op, 0, choice, xs)
            prepared.keep, prepared.finish = (packed, views), finish
            calls.append(prepared)
        return calls

    def reduce_scatter(self, x: Any, out: Any, op: str, options: Options) -> Prepared:
        source = buffers.view(x)
        check(source.dtype, op)
        mine = self._chunk(source.count)
        if out is None:
            out = buffers.like(x, source, len(mine))
        target = buffers.view(out, "out", writes=True)
        expect(target, len(mine), source.dtype, f"rank {self.rank}'s chunk of {source.count} elements")
        apart(source, target)
        choice = self.choices("reduce_scatter", source.count, source.dtype, op, options)
        self._refuse_widening("reduce_scatter", choice, source.dtype, options)
        return self._prepared("reduce_scatter", source, target, source.count, op, 0, choice, out)

    def allgather(self, x: Any, out: Any, options: Options) -> Prepared:
        source = buffers.view(x)
        if out is None:
            out = buffers.like(x, source, self.size * source.count)
        target = buffers.view(out, "out", writes=True)
        mine = self._chunk(target.count)
        expect(source, len(mine), target.dtype, f"rank {self.rank}'s chunk of {target.count} elements", "x")
        if source.address != target.address + mine.start * target.itemsize:
            apart(source, target)
        choice = self.choices("allgather", target.count, target.dtype, NO_OP, options)
        return self._prepared("allgather", source, target, target.count, NO_OP, 0, choice, out)

    def broadcast(self, x: Any, root: int, options: Options) -> Prepared:
        self._check_root(root)
        view = buffers.view(x, writes=self.rank != root)
        choice = self.choices("broadcast", view.count, view.dtype, NO_OP, options)
        return self._prepared("broadcast", view, view, view.count, NO_OP, root, choice, x)

    def reduce(self, x: Any, root: int, out: Any, op: str, options: Options) -> Prepared:
        self._check_root(root)
        mine = self.rank == root
        source = buffers.view(x, writes=mine and out is None)
        check(source.dtype, op)
        target, result = source, x
        if mine and out is not None:
            target, result = buffers.view(out, "out", writes=True), out
            expect(target, source.count, source.dtype, "x")
            if target.address != source.address:
                apart(source, target)
        choice = self.choices("reduce", source.count, source.dtype, op, options)
        self._refuse_widening("reduce", choice, source.dtype, options)
        return self._prepared("reduce", source, target, source.count, op, root, choice, result)

    def gather(self, x: Any, out: Any, root: int, count: int | None, options: Options) -> Prepared:
        self._check_root(root)
        source = target = buffers.view(x)
        total = self.size * source.count if count is None else count
        mine, chunk = self.rank == root, self._chunk(total)
        if mine:
            out = buffers.like(x, source, total) if out is None else out
            target = buffers.view(out, "out", writes=True)
            expect(target, total, source.dtype, f"the message of {self.size} ranks")
            if source.address != target.address + chunk.start * target.itemsize:
                apart(source, target)
        expect(source, len(chunk), target.dtype, f"rank {self.rank}'s chunk of {total} elements", "x")
        choice = self.choices("gather", total, source.dtype, NO_OP, options)
        return self._prepared("gather", source, target, total, NO_OP, root, choice, out if mine else None)

    def scatter(self, x: Any, out: Any, root: int, count: int | None, options: Options) -> Prepared:
        self._check_root(root)
        mine = self.rank == root
        source = buffers.view(x) if mine else None
        if out is None and source is None:
            raise ValueError("scatter needs out, memory for this rank's chunk, on all ranks but root")
        if source is not None:
            total = source.count if count is None else count
            expect(source, total, source.dtype, "the message", "x")
            out = buffers.like(x, source, len(self._chunk(total))) if out is None else out
        target = buffers.view(out, "out", writes=True)
        if source is None:
            source, total = target, self.size * target.count if count is None else count
        chunk = self._chunk(total)
        expect(target, len(chunk), source.dtype, f"rank {self.rank}'s chunk of {total} elements")
        if mine and target.address != source.address + chunk.start * source.itemsize:
            apart(source, target)
        choice = self.choices("scatter", total, target.dtype, NO_OP, options)
        return self._prepared("scatter", source, target, total, NO_OP, root, choice, out)

    def alltoall(
        self,
        x: Any,
        out: Any,
        send_counts: Sequence[int] | None,
        recv_counts: Sequence[int] | None,
        options: Options,
    ) -> Prepared:
        source = buffers.view(x)
        if send_counts is None:
            if recv_counts is not None:
                raise ValueError("recv_counts without send_counts; pass both, or send_counts alone, or neither")
            counts, total = None, self.size * len(self._chunk(source.count))
        else:
            sends = checked(send_counts, self.size, "send_counts")
            expect(source, sum(sends), source.dtype, "the sum of send_counts", "x")
            receives = None if recv_counts is None else checked(recv_counts, self.size, "recv_counts")
            counts = told(self.plans, sends, receives)
            total = sum(counts.receives)
        out = buffers.like(x, source, total) if out is None else out
        target = buffers.view(out, "out", writes=True)
        expect(target, total, source.dtype, "what all ranks send to this one")
        apart(source, target)
        # With counts each rank sends another number of bytes, and all must choose alike: as for a short message.
        choice = self.choices("alltoall", source.count if counts is None else 0, source.dtype, NO_OP, options)
        return self._prepared("alltoall", source, target, source.count, NO_OP, 0, choice, out, counts)

    def barrier(self) -> Prepared:
        if self._barrier is None:
            signs = (bytearray(1), bytearray(self.size))
            mine, everyone = (buffers.view(sign).address for sign in signs)
            self._barrier = Prepared(self.plans.barrier(), mine, everyone, None, signs)
        return self._barrier

    # ------------------------------------------------------------ parts of them
    def _prepared(
        self,
        collective: str,
        source: View,
        target: View,
        count: int,
        op: str,
        root: int,
        choice: Choices,
        result: Any,
        counts: Counts | None = None,
    ) -> Prepared:
        ordinary = choice.ordinary
        call = self.plans.call(collective, target.dtype, count, op, root, ordinary.algorithm, ordinary.params, counts)
        symmetric = choice.symmetric.algorithm == ONE_PASS
        symmetric = symmetric or self.plans.levels_share(collective, ordinary.algorithm, ordinary.params)
        finish = target.restore if target.original is not None else None
        copied = collective == "reduce" and source.address == target.address and not self.plans.in_place(call)
        if copied:
            source = Packed([source]).view
        program = self.plans.program(call, symmetric)
        program.choices = choice
        return Prepared(program, source.address, target.address, result, (source, target), finish, choice, copied)

    def _must_widen(self, collective: str, choice: Choices, dtype: str, options: Options) -> bool:
        """Whether accuracy needs float32 on the wire: where an algorithm rounds more than once."""
        return (
            options.precision == "accurate"
            and dtype in HALVES
            and not folds_once(collective, choice.ordinary.algorithm)
        )

    def _refuse_widening(self, collective: str, choice: Choices, dtype: str, options: Options) -> None:
        if self._must_widen(collective, choice, dtype, options):
            serves = "allreduce is accurate, and so is reduce_scatter with algorithm='direct'"
            raise UnsupportedError(f"{collective} {choice.ordinary.algorithm} rounds {dtype} more than once; {serves}")

    def _chunk(self, count: int) -> range:
        offsets = chunk_offsets(count, self.size)
        return range(offsets[self.rank], offsets[self.rank + 1])

    def _check_root(self, root: int) -> None:
        if not 0 <= index(root) < self.size:
            raise ValueError(f"root {root!r} is not one of {self.size} ranks, 0 to {self.size - 1}")


def planned(collective: str, x: Any, args: Sequence[Any], how: dict[str, Any]) -> dict[str, Any]:
    """What a plan's caller passes beside x, by its name and in the method's order; taken out of `how`."""
    if collective not in PLANNED:
        raise ValueError(f"{collective!r} cannot be planned; there are {', '.join(PLANNED)}")
    if isinstance(x, list | tuple):
        raise UnsupportedError(f"a plan is for one array; a list is served by comm.{collective}")
    names = PLANNED[collective]
    if len(args) > len(names) or any(name in how for name in names[: len(args)]):
        raise TypeError(f"{collective} takes x, {', '.join(names)} and keywords, each once")
    defaults: dict[str, Any] = {"op": "sum", "root": 0}
    given = dict(zip(names, args, strict=False))
    return {name: given.get(name, how.pop(name, defaults.get(name))) for name in names}


def both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()


def expect(found: View, count: int, dtype: str, of: str, name: str = "out") -> None:
    if found.dtype != dtype:
        raise TypeError(f"{name} has dtype {found.dtype}, and {of} has {dtype}; pass the same dtype")
    if found.count != count:
        raise ValueError(f"{name} has {found.count} elements, and {of} has {count}; pass as many")


def apart(source: View, target: View) -> None:
    if source.overlaps(target):
        raise ValueError("out overlaps x; pass memory of its own")
