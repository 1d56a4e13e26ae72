"""From a call's arguments to a request: device memory looked at, and found to fit together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collectives.buffers import View
from collectives.calls import Options, apart, expect
from collectives.cuda.choice import DeviceChoice
from collectives.cuda.launcher import Request
from collectives.dtypes import check
from collectives.errors import UnsupportedError
from collectives.extents import chunk_offsets
from collectives.flight.diagnosis import NO_OP


@dataclass(frozen=True)
class DeviceCall:
    """What a caller asks for. count: of the whole message, where callers may say it."""

    collective: str
    x: Any
    out: Any
    op: str
    root: int
    options: Options
    count: int | None = None


@dataclass(frozen=True)
class Settled:
    """A call that can be made, again and again. x: the array whose library's stream it is ordered on."""

    request: Request
    choice: DeviceChoice
    options: Options
    result: Any
    x: Any


class Requests:
    """Those of one rank. view(x, name, writes): x's memory. like(x, count): a new array beside x.

    Each method gives the request and what the call returns; errors are those of the host's calls (calls.py).
    """

    def __init__(self, rank: int, size: int, view: Callable[[Any, str, bool], View], like: Callable[[Any, int], Any]):
        self.rank, self.size, self.view, self.like = rank, size, view, like

    def of(self, collective: str, x: Any, out: Any, op: str, root: int, count: int | None) -> tuple[Request, Any]:
        """The call of the method of this name. count: of the whole message, where callers may say it."""
        if not 0 <= root < self.size:
            raise ValueError(f"root {root!r} is not one of {self.size} ranks, 0 to {self.size - 1}")
        match collective:
            case "allreduce" | "reduce_scatter":
                return getattr(self, collective)(x, out, op)  # type: ignore[no-any-return]
            case "allgather":
                return self.allgather(x, out)
            case "broadcast":
                return self.broadcast(x, root)
            case "reduce":
                return self.reduce(x, out, op, root)
            case "gather" | "scatter":
                return getattr(self, collective)(x, out, root, count)  # type: ignore[no-any-return]
            case "alltoall":
                return self.alltoall(x, out)
        raise UnsupportedError(f"{collective} is not for memory of a GPU")

    def allreduce(self, x: Any, out: Any, op: str) -> tuple[Request, Any]:
        source = target = self.view(x, "x", out is None)
        if out is not None:
            target = self._same_or_apart(source, out)
        check(source.dtype, op)
        return Request("allreduce", op, 0, source.count, source, target), x if out is None else out

    def reduce_scatter(self, x: Any, out: Any, op: str) -> tuple[Request, Any]:
        source = self.view(x, "x", False)
        check(source.dtype, op)
        n = len(self._chunk(source.count))
        out = self.like(x, n) if out is None else out
        target = self.view(out, "out", True)
        expect(target, n, source.dtype, f"rank {self.rank}'s chunk of {source.count} elements")
        apart(source, target)
        return Request("reduce_scatter", op, 0, source.count, source, target), out

    def allgather(self, x: Any, out: Any) -> tuple[Request, Any]:
        source = self.view(x, "x", False)
        out = self.like(x, self.size * source.count) if out is None else out
        target = self.view(out, "out", True)
        self._expect_chunk(source, target, target.count)
        return Request("allgather", NO_OP, 0, target.count, source, target), out

    def broadcast(self, x: Any, root: int) -> tuple[Request, Any]:
        found = self.view(x, "x", self.rank != root)
        return Request("broadcast", NO_OP, root, found.count, found, found), x

    def reduce(self, x: Any, out: Any, op: str, root: int) -> tuple[Request, Any]:
        mine = self.rank == root
        source = target = self.view(x, "x", mine and out is None)
        check(source.dtype, op)
        if mine and out is not None:
            target = self._same_or_apart(source, out)
        return Request("reduce", op, root, source.count, source, target), out if mine and out is not None else x

    def gather(self, x: Any, out: Any, root: int, count: int | None) -> tuple[Request, Any]:
        source = target = self.view(x, "x", False)
        total = self.size * source.count if count is None else count
        if self.rank == root:
            out = self.like(x, total) if out is None else out
            target = self.view(out, "out", True)
            expect(target, total, source.dtype, f"the message of {self.size} ranks")
            self._expect_chunk(source, target, total)
        else:
            expect(source, len(self._chunk(total)), source.dtype, f"rank {self.rank}'s chunk of {total} elements", "x")
        return Request("gather", NO_OP, root, total, source, target), out if self.rank == root else None

    def scatter(self, x: Any, out: Any, root: int, count: int | None) -> tuple[Request, Any]:
        if self.rank == root:
            source = self.view(x, "x", False)
            total = source.count if count is None else count
            expect(source, total, source.dtype, "the message", "x")
            out = self.like(x, len(self._chunk(total))) if out is None else out
            target = self.view(out, "out", True)
        else:
            source = target = self.view(out, "out", True)
            total = self.size * target.count if count is None else count
        mine = self._chunk(total)
        expect(target, len(mine), source.dtype, f"rank {self.rank}'s chunk of {total} elements")
        if self.rank == root and target.address != source.address + mine.start * source.itemsize:
            apart(source, target)
        return Request("scatter", NO_OP, root, total, source, target), out

    def alltoall(self, x: Any, out: Any) -> tuple[Request, Any]:
        source = self.view(x, "x", False)
        total = self.size * len(self._chunk(source.count))
        out = self.like(x, total) if out is None else out
        target = self.view(out, "out", True)
        expect(target, total, source.dtype, "what all ranks send to this one")
        apart(source, target)
        return Request("alltoall", NO_OP, 0, source.count, source, target), out

    # ------------------------------------------------------------ parts of them
    def _chunk(self, count: int) -> range:
        """My elements."""
        offsets = chunk_offsets(count, self.size)
        return range(offsets[self.rank], offsets[self.rank + 1])

    def _same_or_apart(self, source: View, out: Any) -> View:
        """The memory of out, for as many elements as x has: x's own, or memory apart from it."""
        target = self.view(out, "out", True)
        expect(target, source.count, source.dtype, "x")
        if target.address != source.address:
            apart(source, target)
        return target

    def _expect_chunk(self, source: View, target: View, total: int) -> None:
        """My chunk, in its place of the target or apart from it."""
        mine = self._chunk(total)
        expect(source, len(mine), target.dtype, f"rank {self.rank}'s chunk of {total} elements", "x")
        if source.address != target.address + mine.start * source.itemsize:
            apart(source, target)
