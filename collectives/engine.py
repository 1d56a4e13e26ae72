"""The progress engine: one a process. It advances the first unfinished call of every communicator.

Calls on one communicator run in the order in which they were made, one at a time, as ranks must agree on it anyway;
calls on different communicators advance side by side. Compiled code runs for about 2 ms at a time, without the
interpreter's lock; in between, Python sees interrupts, deadlines, and processes that have died.
"""

import ctypes
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any

from collectives.channel import Channel
from collectives.errors import CollectiveError, CollectiveTimeout, CommunicatorBroken, UnsupportedError
from collectives.gate import Gate
from collectives.native import layout as st
from collectives.native.library import ADVANCE_NS, library
from collectives.native.program import Program

if TYPE_CHECKING:
    from collectives.timeline import Timeline


@dataclass
class Prepared:
    """A call with its program and addresses, ready to run."""

    program: Program
    source: int
    target: int
    result: Any = None  # what the caller gets
    keep: Any = None  # what must live until it has run
    finish: Callable[[], None] | None = None  # what remains to be done then
    choices: Any = None  # what serves it, on either kind of storage
    copied: bool = False  # its source is a copy of the caller's memory, made once


class Work:
    """A call under way. `done` asks, `wait` waits and returns the call's result.

    `started_ns`, `ended_ns`: when it was its turn, and when it was done, on the clock of time.monotonic_ns().
    `sequence`: its number among the communicator's calls.
    """

    def __init__(self, channel: Channel, prepared: Prepared, timeout: float | None = None, site: int = 0):
        self.channel, self.program, self.result = channel, prepared.program, prepared.result
        self.source, self.target = prepared.source, prepared.target
        self.keep, self.finish, self.timeout = prepared.keep, prepared.finish, timeout
        self.began, self.site = time.monotonic(), site
        self.ended, self.error = False, None  # type: bool, BaseException | None
        self.started_ns = self.ended_ns = self.sequence = 0

    def done(self) -> bool:
        """Whether the call has finished; advances it a little. Raises what made it fail."""
        if not self.ended:
            ENGINE.turn(0)
            self.channel.watch(self)
        return self._outcome()

    def wait(self, timeout: float | None = None) -> Any:
        """The result, when the call has finished. Raises what made it fail.

        CollectiveTimeout if `timeout` seconds pass first; unlike the call's own deadline, that breaks nothing.
        """
        ENGINE.wait(self, timeout)
        self._outcome()
        return self.result

    def start(self) -> None:
        if self.timeout is not None:
            self.program.set_timeout(self.timeout)
        self.started_ns = time.monotonic_ns()
        self.program.state[st.SITE] = self.site
        self.program.start(self.source, self.target)
        self.sequence = self.program.state[st.SEQ]

    def _outcome(self) -> bool:
        if self.error is not None:
            raise self.error
        if self.ended and self.finish is not None:
            finish, self.finish = self.finish, None
            finish()
        if self.ended:
            self.keep = None
        return self.ended


class Engine:
    """All channels with unfinished calls, and one lock around what they share."""

    def __init__(self) -> None:
        self.lock = Gate()
        self.busy: list[Channel] = []
        self.thread: int | None = None  # the only one that may call, where MPI does not allow several
        self.timeline: Timeline | None = None  # told of every call that ends
        self._addresses = (ctypes.c_int64 * 64)()
        self._addresses_at = ctypes.addressof(self._addresses)

    def call(self, channel: Channel, program: Program, source: int, target: int, keep: Any = None) -> None:
        """Run to the end. Nothing but compiled code between start and end, where it is quick and nothing else runs."""
        lock = self.lock
        try:
            try:
                lock.take()
            except IndexError:
                lock.wait()
            try:
                if channel.broken is not None:
                    raise channel.broken_now()
                if not self.busy and self.timeline is None and not channel.looks:
                    status = program.run(source, target)
                    if status == st.DONE:
                        return
                    work = Work(channel, Prepared(program, source, target, None, keep))
                    channel.pending.append(work)
                    self.busy.append(channel)
                    if status == st.ERROR:
                        self._end(channel)
                else:
                    self.admit()
                    work = self._submit(
                        Work(channel, Prepared(program, source, target, None, keep), site=channel.site())
                    )
            finally:
                lock.put(None)
        except CollectiveError:  # nothing has begun
            raise
        except BaseException:
            if channel.broken is None and program.running:  # a signal's handler has raised
                channel.pinned.append((keep, program))
                self.give_up(channel, st.INTERRUPTED)
            raise
        self.wait(work)
        if work.error is not None:
            raise work.error

    def submit(self, work: Work) -> Work:
        """Put a call behind its communicator's others."""
        self.admit()
        with self.lock:
            if work.channel.broken is not None:
                raise work.channel.broken_now()
            return self._submit(work)

    def _submit(self, work: Work) -> Work:
        work.channel.pending.append(work)
        if len(work.channel.pending) == 1:
            self.busy.append(work.channel)
            work.start()
        return work

    def turn(self, budget_ns: int = ADVANCE_NS) -> None:
        """Advance the first call of each communicator until one ends, or for budget_ns."""
        self.admit()
        with self.lock:
            heads = [channel.pending[0] for channel in self.busy]
            if not heads:
                return
            if len(heads) > len(self._addresses):
                self._addresses = (ctypes.c_int64 * (2 * len(heads)))()
                self._addresses_at = ctypes.addressof(self._addresses)
            for i, work in enumerate(heads):
                self._addresses[i] = work.program.address
            library().advance(self._addresses_at, len(heads), budget_ns)
            for channel in list(self.busy):
                if not channel.pending[0].program.running:
                    self._end(channel)

    def wait(self, work: Work, timeout: float | None = None) -> None:
        """Until the call has ended, one way or the other."""
        until = None if timeout is None else time.monotonic() + timeout
        idle_since = 0.0
        try:
            while not work.ended:
                self.turn()
                self.lock.give_way()
                work.channel.watch(work)
                idle_since = work.channel.nap(idle_since)
                if until is not None and time.monotonic() > until and not work.ended:
                    raise CollectiveTimeout(f"{work.channel.describe(work.program)} is not done after {timeout} s")
        except CollectiveTimeout:
            raise
        except BaseException:
            self.give_up(work.channel, st.INTERRUPTED)
            raise

    def give_up(self, channel: Channel, code: int) -> None:
        """After an interrupt: nothing that the channel has begun can be finished."""
        if channel.broken is None:
            channel.break_(code, CommunicatorBroken("interrupted while a collective was running"))

    def _end(self, channel: Channel) -> None:
        """The channel's first call has ended: let it go, and start the next."""
        work = channel.pending.popleft()
        failed = work.program.state[st.STATUS] == st.BROKEN
        if failed:
            work.error = channel.fail(work)
        work.ended, work.ended_ns = True, time.monotonic_ns()
        if self.timeline is not None:
            self.timeline.add(work)
        if work.timeout is not None:
            work.program.set_timeout(None)
        if failed:
            for later in channel.pending:
                later.error, later.ended = channel.broken_now(), True
            channel.pending.clear()
        if channel.pending:
            channel.pending[0].start()
        else:
            self.busy.remove(channel)

    def admit(self) -> None:
        """UnsupportedError in a thread that may not call MPI's functions."""
        if self.thread is not None and self.thread != get_ident():
            raise UnsupportedError(
                "MPI was initialised for calls from one thread only, and this is another one: leave "
                'mpi4py.rc.thread_level at "multiple", or call MPI.Init_thread(MPI.THREAD_MULTIPLE)'
            )

    def reset(self, channels: "Iterable[Channel]", why: str) -> None:
        """In a process that has been forked: channels are its parent's, and so is the thread that held the lock."""
        self.lock, self.thread = Gate(), None
        self.busy.clear()
        for channel in channels:
            channel.retire(why)
            for work in channel.pending:
                work.error, work.ended = channel.broken_now(), True
            channel.pending.clear()

    def drop(self, channel: Channel) -> None:
        """Forget a channel that has been broken from outside."""
        if channel in self.busy:
            self.busy.remove(channel)


ENGINE = Engine()
