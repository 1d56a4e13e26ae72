"""The way through the host: pieces of the message go down into pinned slots in the node's shared memory, the host's
collective runs on them there, and they go up again; each of the three is under way for another piece.

No GPU need reach another one, so it serves between nodes and anywhere else. The host has to look now and then: `done`
and `wait` do, and so does every call that blocks.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from collectives.arrays import array as array_of
from collectives.buffers import view as host_view
from collectives.cuda.driver import Driver
from collectives.cuda.launcher import Request
from collectives.engine import ENGINE
from collectives.errors import CollectiveTimeout
from collectives.extents import chunk_offsets

if TYPE_CHECKING:
    from collectives.communicator import Communicator

NAP_SECONDS = 2e-5
TAKES_AT_ROOT = {"reduce": True, "broadcast": False}  # whether the root has a result, or all others have
PIECEWISE = ("allreduce", "broadcast", "reduce")  # of which a part of the message is a call of its own
ALIGN = 64


@dataclass
class Piece:
    """Some elements of a message, and how far they have come."""

    first: int
    count: int
    slot: int
    down: int = 0  # event: the slot holds it
    up: int = 0  # event: the slot is free
    host: Any = None  # the host's call


class Slots:
    """Pinned memory that the node's ranks share."""

    def __init__(self, driver: Driver, host: "Communicator", n_bytes: int):
        self.driver, self.memory = driver, host.empty(n_bytes, "uint8")
        found = host_view(self.memory)
        self.address, self.n_bytes = found.address, n_bytes
        driver.register(self.address, n_bytes)

    def array(self, offset: int, dtype: str, count: int) -> Any:
        import ctypes

        whole = (ctypes.c_char * self.n_bytes).from_address(self.address)
        whole_memory = whole, self.memory
        made = array_of(whole, dtype, (count,), offset)
        made.keep = whole_memory
        return made

    def close(self) -> None:
        self.driver.unregister(self.address)


@dataclass
class StagedWork:
    """A call under way. `wait` returns when its last piece is on its way up, behind which the caller's stream waits."""

    staged: "Staged"
    request: Request
    result: Any
    x: Any
    pieces: list[Piece]
    piece_bytes: int
    slots: int
    ready: int  # event: the caller's data are there
    how: dict[str, Any]  # order and precision of the host's calls
    began: float = field(default_factory=time.monotonic)
    sunk: int = 0  # pieces on their way down, in the host's hands, and on their way up
    given: int = 0
    risen: int = 0
    last: int = 0  # event: all of it is done

    def done(self) -> bool:
        """Whether all of it is where it belongs; moves it on a little."""
        self.staged.advance()
        return self.risen == len(self.pieces) and self.staged.driver.done(self.last)

    def wait(self, timeout: float | None = None) -> Any:
        """The result. CollectiveTimeout if `timeout` seconds pass first."""
        limit = timeout if timeout is not None else self.staged.timeout
        until = time.monotonic() + limit
        while self.risen < len(self.pieces):
            if not self.staged.advance():
                time.sleep(NAP_SECONDS)
            if time.monotonic() > until:
                raise CollectiveTimeout(
                    f"{self.request.collective} through the host: {self.risen} of {len(self.pieces)} pieces are back "
                    f"after {limit} s"
                )
        driver = self.staged.driver
        driver.wait(driver.current_stream(self.x, self.staged.device), self.last)
        return self.result


class Staged:
    """Staged calls of one communicator, in order. Making it is collective: `host` is a communicator of its own."""

    def __init__(self, driver: Driver, device: int, host: "Communicator", timeout: float):
        self.driver, self.device, self.host, self.timeout = driver, device, host, timeout
        self.down, self.up = driver.stream(), driver.stream()
        self.queue: deque[StagedWork] = deque()
        self.slots: Slots | None = None
        self.events: list[int] = []  # to be used again

    # ------------------------------------------------------------ beginning
    def submit(
        self, request: Request, result: Any, x: Any, stream: int, piece_bytes: int, slots: int, how: dict[str, Any]
    ) -> StagedWork:
        """Begin a call. The first one of a size takes memory, which is collective, as all ranks make the same calls."""
        itemsize = request.target.itemsize
        each = max(1, piece_bytes // itemsize) if request.collective in PIECEWISE else max(1, request.count)
        pieces = [
            Piece(first, min(each, request.count - first), i % slots)
            for i, first in enumerate(range(0, request.count, each))
        ]
        areas = min(slots, max(1, len(pieces))) if request.collective in PIECEWISE else 2
        longest = min(each, max(1, request.count))
        if request.collective == "alltoall":  # a rank may get a little more than it sends
            longest += self.host.size
        area = -(-longest * itemsize // ALIGN) * ALIGN
        if self.slots is None or self.slots.n_bytes < areas * area:
            self.drain()
            if self.slots is not None:
                self.driver.synchronize(self.up)
                self.slots.close()
            self.slots = Slots(self.driver, self.host, areas * area)
        ready = self.event()
        self.driver.record(ready, stream)
        self.driver.wait(self.down, ready)
        work = StagedWork(self, request, result, x, pieces, area, slots, ready, how)
        work.last = self.event()
        if not pieces:
            self.driver.record(work.last, self.up)
        self.queue.append(work)
        self.advance()
        return work

    def drain(self) -> None:
        while self.queue:
            self.queue[0].wait()

    def event(self) -> int:
        return self.events.pop() if self.events else self.driver.event()

    # ------------------------------------------------------------ going on
    def advance(self) -> bool:
        """Move the first call on by whatever can move; whether something did."""
        moved = False
        while self.queue:
            work = self.queue[0]
            steps = self._sink(work), self._give(work), self._rise(work)
            if work.risen == len(work.pieces):
                self._end(work)
                moved = True
            elif any(steps):
                return True
            else:
                ENGINE.turn(0)
                return moved
        return moved

    def _sink(self, work: StagedWork) -> bool:
        """Start the next piece on its way down, where its slot is free."""
        if work.sunk == len(work.pieces) or work.sunk - work.risen >= work.slots:
            return False
        piece, request = work.pieces[work.sunk], work.request
        if work.sunk >= work.slots:
            self.driver.wait(self.down, work.pieces[work.sunk - work.slots].up)
        size, at = request.target.itemsize, self._area(work, piece)
        root = self.host.rank == request.root
        if request.collective == "allgather":
            offsets = chunk_offsets(request.count, self.host.size)
            at += offsets[self.host.rank] * size
        if request.collective in ("allgather", "gather"):
            self.driver.copy(at, request.source.address, request.source.n_bytes, self.down)
        elif request.collective not in ("broadcast", "scatter") or root:
            self.driver.copy(at, request.source.address + piece.first * size, piece.count * size, self.down)
        piece.down = self.event()
        self.driver.record(piece.down, self.down)
        work.sunk += 1
        return True

    def _give(self, work: StagedWork) -> bool:
        """Give a piece that has come down to the host's collective; in order, as all ranks must."""
        if work.given == work.sunk or not self.driver.done(work.pieces[work.given].down):
            return False
        piece, request, slots = work.pieces[work.given], work.request, self.slots
        assert slots is not None
        host, offset, dtype = self.host, piece.slot * work.piece_bytes, request.dtype
        x, root = slots.array(offset, dtype, piece.count), host.rank == request.root
        match request.collective:
            case "allreduce":
                piece.host = host.allreduce(x, op=request.op, blocking=False, **work.how)
            case "broadcast":
                piece.host = host.broadcast(x, request.root, blocking=False)
            case "reduce":
                piece.host = host.reduce(x, request.root, op=request.op, blocking=False, **work.how)
            case "reduce_scatter":
                out = slots.array(work.piece_bytes, dtype, request.target.count)
                piece.host = host.reduce_scatter(x, out, request.op, blocking=False, **work.how)
            case "allgather":
                offsets = chunk_offsets(request.count, host.size)
                mine = offsets[host.rank], offsets[host.rank + 1]
                own = slots.array(offset + mine[0] * request.target.itemsize, dtype, mine[1] - mine[0])
                piece.host = host.allgather(own, x, blocking=False)
            case "gather":
                own = slots.array(offset, dtype, request.source.count)
                whole = slots.array(work.piece_bytes, dtype, piece.count) if root else None
                piece.host = host.gather(own, whole, request.root, count=piece.count, blocking=False)
            case "scatter":
                out = slots.array(work.piece_bytes, dtype, request.target.count)
                piece.host = host.scatter(x if root else None, out, request.root, count=piece.count, blocking=False)
            case "alltoall":
                out = slots.array(work.piece_bytes, dtype, request.target.count)
                piece.host = host.alltoall(x, out, blocking=False)
        work.given += 1
        return True

    def _rise(self, work: StagedWork) -> bool:
        """Send up a piece with which the host is done."""
        if work.risen == work.given or not work.pieces[work.risen].host.done():
            return False
        piece, request, size = work.pieces[work.risen], work.request, work.request.target.itemsize
        root = self.host.rank == request.root
        if request.collective in ("reduce_scatter", "scatter", "alltoall") or (request.collective == "gather" and root):
            assert self.slots is not None
            area = self.slots.address + work.piece_bytes
            self.driver.copy(request.target.address, area, request.target.n_bytes, self.up)
        elif request.collective in ("allreduce", "allgather") or TAKES_AT_ROOT.get(request.collective) == root:
            target = request.target.address + piece.first * size
            self.driver.copy(target, self._area(work, piece), piece.count * size, self.up)
        piece.up = self.event()
        self.driver.record(piece.up, self.up)
        work.risen += 1
        if work.risen == len(work.pieces):
            self.driver.record(work.last, self.up)
        return True

    def _area(self, work: StagedWork, piece: Piece) -> int:
        assert self.slots is not None
        return self.slots.address + piece.slot * work.piece_bytes

    def _end(self, work: StagedWork) -> None:
        """Events are used again: whoever waits for one has been told to already."""
        self.queue.popleft()
        self.driver.wait(self.down, work.last)  # the next call's pieces come into the same slots
        self.events += [event for piece in work.pieces for event in (piece.down, piece.up)] + [work.ready]

    def close(self) -> None:
        """Collective."""
        self.drain()
        self.driver.synchronize(self.up)
        if self.slots is not None:
            self.slots.close()
        self.host.close()
