"""What a torch.distributed call returns before it is done, and futures of it that nobody waits for in Python."""

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from collectives.errors import CollectiveTimeout
from integrations.overlap import allowed, leave

LOOK_SECONDS = 1e-3  # between two looks at works whose futures are waited for
REST_SECONDS = 0.1  # the same, while all belong to a backward pass
BACKWARD_SECONDS = 30.0  # that a backward pass has to come to its end
Tensors = list[torch.Tensor]


class Part(Protocol):
    """A call or a message under way."""

    def done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> Any: ...


class Done(dist.Work):
    """A call that has ended before it returned."""

    def __init__(self, tensors: Sequence[torch.Tensor] = ()):
        super().__init__()
        self._tensors = list(tensors)

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002 - torch's interface
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> BaseException | None:
        return None

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> "torch.futures.Future[list[torch.Tensor]]":
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class Awaited(torch.futures.Future[Tensors]):
    """The future of a work. Who waits for it in Python advances the work meanwhile, also within another's callback."""

    def __init__(self, work: "Pending"):
        super().__init__()
        self._work = weakref.ref(work)

    def wait(self) -> Tensors:
        work = self._work()
        if work is not None:
            work.wait()
        return super().wait()


class Pending(dist.Work):
    """Parts that are under way. Asking and waiting advance them; who wants a future gets it completed by `keeper`.

    finish: what remains to be done when all parts have ended, by whoever sees that first.
    """

    def __init__(
        self,
        keeper: "Keeper",
        parts: Sequence[Part],
        tensors: Sequence[torch.Tensor],
        finish: Callable[[], None] | None = None,
        keep: Any = None,
    ):
        super().__init__()
        self._keeper, self._parts, self._tensors = keeper, parts, list(tensors)
        self._finish, self._keep = finish, keep
        self._lock = threading.RLock()  # two threads may look
        self.ended, self._error = False, None  # type: bool, BaseException | None
        self._future: Awaited | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Raises what made a part fail; CollectiveTimeout where `timeout` passes first, which ends nothing."""
        limit = timeout.total_seconds() if timeout else None
        until = time.monotonic() + limit if limit else None
        with self._lock:
            if not self.ended:
                self._attempt(lambda part: part.wait(None if until is None else max(0.0, until - time.monotonic())))
            if self._error is not None:
                raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not. Advances it a little."""
        if not self.ended and self._lock.acquire(blocking=False):  # else somebody waits for it
            try:
                with suppress(Exception):  # it is kept, and raised by `wait`
                    if not self.ended:
                        self._attempt(lambda part: part.done())
            finally:
                self._lock.release()
        return self.ended

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def source_rank(self) -> int:
        """Who sent what has been received."""
        return int(self._parts[0].rank)  # type: ignore[attr-defined]

    _source_rank = source_rank

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> "torch.futures.Future[list[torch.Tensor]]":
        """Completed at the latest when the backward pass ends that runs now, if one does."""
        with self._lock:
            if self._future is None:
                self._future = Awaited(self)
                if self.ended:
                    self._tell()
                else:
                    self._keeper.see_to(self)
            return self._future

    def _attempt(self, move: Callable[[Part], Any]) -> None:
        """Move all parts on; where all have ended, or one has failed, that was it."""
        try:
            for part in self._parts:
                move(part)
            if sum(part.done() for part in self._parts) < len(self._parts):
                return
            if self._finish is not None:
                self._finish()
        except BaseException as error:
            failed = any(getattr(part, "error", None) is not None for part in self._parts)
            if failed or not isinstance(error, CollectiveTimeout):
                self._error, self.ended = error, True
                self._tell()
            raise
        self.ended, self._keep = True, None
        self._tell()

    def _tell(self) -> None:
        if self._future is None:
            return
        if self._error is None:
            self._future.set_result(self._tensors)
        else:
            self._future.set_exception(self._error)  # type: ignore[arg-type]


Entrusted = tuple[float, Pending]  # from when on to look at it, by the monotonic clock


class Keeper:
    """Advances works that nobody may be waiting for in Python, so that their futures are completed all the same.

    In a backward pass DDP waits for futures when it has ended: a callback that runs before it completes them there, in
    the order of the calls, so that what futures' own callbacks call is the same on all ranks. Elsewhere, and where a
    pass does not come to its end, a thread looks every millisecond; where MPI allows one thread only, asking for a
    future waits.
    """

    def __init__(self) -> None:
        self._works: queue.SimpleQueue[Entrusted | None] = queue.SimpleQueue()
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None

    def see_to(self, work: Pending) -> None:
        since = time.monotonic()
        if torch._C._current_autograd_node() is not None:
            torch.autograd.Variable._execution_engine.queue_callback(work.synchronize)
            since += BACKWARD_SECONDS
        if not allowed():
            with suppress(Exception):  # it is the future's
                work.wait()
            return
        if self._thread is None:
            arguments = self._works, self._leaving
            self._thread = threading.Thread(target=look_after, args=arguments, name="treering-works", daemon=True)
            self._thread.start()
            weakref.finalize(self, self._works.put, None).atexit = False
            atexit.register(leave, *arguments, weakref.ref(self._thread))
        self._works.put((since, work))

    def stop(self) -> None:
        if self._thread is not None:
            self._works.put(None)
            self._thread.join()
            self._thread = None


def look_after(works: "queue.SimpleQueue[Entrusted | None]", leaving: threading.Event) -> None:
    """The thread: until it is told to stop, and has nothing left."""
    pending: list[Entrusted] = []
    stopping = False
    while not leaving.is_set() and not (stopping and not pending):
        now = time.monotonic()
        pause = LOOK_SECONDS if any(since <= now for since, _ in pending) else REST_SECONDS
        with suppress(queue.Empty):
            came = works.get(timeout=pause if pending else None)
            stopping = came is None
            pending += [] if came is None else [came]
        pending = [
            (since, work) for since, work in pending if not (work.is_completed() if since <= now else work.ended)
        ]
        came = None  # which holds its group
