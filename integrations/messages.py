"""Messages between two ranks, apart from collectives: a send never waits for, and never comes between, a collective.

Ranks of one node have a socket each. A short message is a datagram; a longer one is memory that the datagram carries a
descriptor of. So a send is done when it has left, whether or not anybody receives it, and needs no help from its sender
later. Between nodes it is MPI's own send. Messages of one pair and tag arrive in the order in which they were sent.
"""

import errno
import os
import secrets
import select
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from ctypes import c_char
from hmac import compare_digest
from threading import RLock
from typing import Any

import collectives
from collectives.buffers import View
from collectives.engine import ENGINE
from collectives.errors import CollectiveError, CollectiveTimeout, PeerLost

SECRET_BYTES, INLINE_BYTES = 16, 1 << 14
HEADER = struct.Struct(f"={SECRET_BYTES}siqq")  # secret, source, tag, bytes
INT = struct.Struct("i")
LOOK_SECONDS = 0.2  # between two looks at the processes that are waited for
FULL = errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS  # the receiver has not taken what came before
PAUSE_SECONDS = 1e-3  # of which a message ends when it comes


class Message:
    """A send or a receive under way. `rank`: the other end; of a receive from anybody None, until it is done."""

    def __init__(self, office: "Office", view: View, rank: int | None, tag: int, sends: bool):
        self.office, self.view, self.rank, self.tag, self.sends = office, view, rank, tag, sends
        self.ended, self.error = False, None  # type: bool, CollectiveError | None
        self.request: Any = None  # MPI's
        self.began = self.looked = time.monotonic()

    def done(self) -> bool:
        """Whether it has ended. Raises what made it fail: CollectiveTimeout, PeerLost."""
        if not self.ended:
            self.office.progress(self)
        if not self.ended:
            self.office.watch(self)
        if self.error is not None:
            raise self.error
        return self.ended

    def wait(self, timeout: float | None = None) -> None:
        """CollectiveTimeout if `timeout` seconds pass first; unlike the group's own deadline, that ends nothing."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self.done():
            ENGINE.turn(0)  # collectives that are under way go on
            self.office.pause()
            if until is not None and time.monotonic() > until:
                raise CollectiveTimeout(f"{self} is not done after {timeout} s")

    def __str__(self) -> str:
        doing, to = ("send", "to") if self.sends else ("receive", "from")
        whom = "any rank" if self.rank is None else f"rank {self.rank}"
        return f"rank {self.office.comm.rank}: {doing} of {self.view.n_bytes} bytes {to} {whom}, tag {self.tag}"


class Office(ABC):
    """Where the messages of one communicator come from and go to. Making one is collective."""

    def __init__(self, comm: "collectives.Communicator", timeout: float):
        self.comm, self.timeout, self.lock = comm, timeout, RLock()

    @classmethod
    def of(cls, comm: "collectives.Communicator", timeout: float) -> "Office":
        made = Sockets if len(comm.topology.nodes) == 1 else Mpi
        return made(comm, timeout)

    @abstractmethod
    def send(self, view: View, rank: int, tag: int) -> Message: ...

    @abstractmethod
    def receive(self, view: View, rank: int | None, tag: int) -> Message: ...

    @abstractmethod
    def progress(self, message: Message) -> None:
        """Whatever can be done now, at least for this message."""

    @abstractmethod
    def pause(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def watch(self, message: Message) -> None:
        """While a message waits: is there time, and is the other end alive?"""
        now = time.monotonic()
        if now - message.looked < LOOK_SECONDS:
            return
        message.looked = now
        ended = self.comm._channel.ended()
        if message.rank in ended:
            self.progress(message)  # it may have sent before it ended
            if not message.ended:
                self.fail(message, PeerLost(f"{message}: rank {message.rank} has ended; see its own output"))
        elif now - message.began > self.timeout:
            self.fail(message, CollectiveTimeout(f"{message} is not done after {self.timeout:g} s"))

    def fail(self, message: Message, error: CollectiveError) -> None:
        message.ended, message.error = True, error

    def expect(self, message: Message, n_bytes: int) -> None:
        """That what has come is as long as what it is received into."""
        if n_bytes != message.view.n_bytes:
            mend = "let both ends name as many elements of one dtype"
            self.fail(message, CollectiveError(f"{message}: {n_bytes} bytes came; {mend}"))


# ---------------------------------------------------------------- one node
class Sockets(Office):
    """A datagram socket without a name in any file system, in which this rank receives from all others of its node.

    Who sends must know the receiver's secret, which has travelled by the ranks' own way of meeting.
    """

    def __init__(self, comm: "collectives.Communicator", timeout: float):
        super().__init__(comm, timeout)
        self._secret, name = secrets.token_bytes(SECRET_BYTES), b"\0treering-" + secrets.token_hex(16).encode()
        peers = comm._group.comm
        with peers.together("open a socket"):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._socket.bind(name)
        told = peers.exchange(self._secret + name)
        self._others = [(each[:SECRET_BYTES], each[SECRET_BYTES:]) for each in told]
        self._leaving: dict[int, deque[Message]] = {rank: deque() for rank in range(comm.size)}
        self._expected: list[Message] = []
        self._arrived: list[tuple[int, int, int, bytes, int]] = []  # source, tag, bytes, they or a descriptor of them

    def send(self, view: View, rank: int, tag: int) -> Message:
        message = Message(self, view, rank, tag, sends=True)
        with self.lock:
            self._leaving[rank].append(message)
            self._flush(rank)
        return message

    def receive(self, view: View, rank: int | None, tag: int) -> Message:
        message = Message(self, view, rank, tag, sends=False)
        with self.lock:
            self._expected.append(message)
        return message

    def progress(self, message: Message) -> None:  # noqa: ARG002 - for all of them alike
        with self.lock:
            for rank, leaving in self._leaving.items():
                if leaving:
                    self._flush(rank)
            self._arrived += self._datagrams()
            for expected in self._expected:
                self._match(expected)
            self._expected = [expected for expected in self._expected if not expected.ended]

    def pause(self) -> None:
        poll = select.poll()  # of this thread's own: several may wait
        poll.register(self._socket, select.POLLIN)
        poll.poll(int(1e3 * PAUSE_SECONDS))

    def close(self) -> None:
        self._socket.close()
        for *_, fd in self._arrived:
            if fd >= 0:
                os.close(fd)

    def _flush(self, rank: int) -> None:
        leaving, (secret, name) = self._leaving[rank], self._others[rank]
        while leaving:
            message, view = leaving[0], leaving[0].view
            header = HEADER.pack(secret, self.comm.rank, message.tag, view.n_bytes)
            try:
                if view.n_bytes <= INLINE_BYTES:
                    self._socket.sendto(header + bytes(memory(view)), name)
                else:
                    fd = filled(memory(view))
                    try:
                        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, INT.pack(fd))]
                        self._socket.sendmsg([header], passed, 0, name)  # socket.send_fds takes no address
                    finally:
                        os.close(fd)
            except ConnectionError:  # it has closed its socket
                self.fail(message, PeerLost(f"{message}: rank {rank} has left the group, or ended"))
            except OSError as error:
                if error.errno in FULL:
                    return
                raise
            leaving.popleft()
            message.ended = True

    def _datagrams(self) -> Iterator[tuple[int, int, int, bytes, int]]:
        while True:
            try:
                said, fds, _, _ = socket.recv_fds(
                    self._socket, HEADER.size + INLINE_BYTES, 1, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            secret, source, tag, n_bytes = HEADER.unpack_from(said.ljust(HEADER.size))
            if compare_digest(secret, self._secret):
                yield source, tag, n_bytes, said[HEADER.size :], fds[0] if fds else -1

    def _match(self, message: Message) -> None:
        """The first that has come for it."""
        for i, (source, tag, n_bytes, payload, fd) in enumerate(self._arrived):
            if tag == message.tag and message.rank in (None, source):
                del self._arrived[i]
                message.rank, message.ended = source, True
                self.expect(message, n_bytes)
                if fd >= 0:
                    with os.fdopen(fd, "rb", buffering=0) as file:
                        if message.error is None:
                            read_into(file.fileno(), memory(message.view))
                elif message.error is None:
                    memory(message.view)[:] = payload
                return


def memory(view: View) -> memoryview:
    kind = c_char * view.n_bytes
    return memoryview(kind.from_address(view.address) if view.n_bytes else bytearray()).cast("B")


def filled(content: memoryview) -> int:
    """A descriptor of memory that holds a copy of the content."""
    fd = os.memfd_create("treering-message", os.MFD_CLOEXEC)
    try:
        at = 0
        while at < len(content):
            at += os.pwrite(fd, content[at:], at)
    except OSError:
        os.close(fd)
        raise
    return fd


def read_into(fd: int, target: memoryview) -> None:
    at = 0
    while at < len(target):
        at += os.preadv(fd, [target[at:]], at)


# ---------------------------------------------------------------- several nodes
class Mpi(Office):
    """A communicator of its own, so that no collective's message is ever taken for one of these."""

    def __init__(self, comm: "collectives.Communicator", timeout: float):
        super().__init__(comm, timeout)
        self._mpi = comm._group.comm.mpi.Dup()

    def send(self, view: View, rank: int, tag: int) -> Message:
        message = Message(self, view, rank, tag, sends=True)
        message.request = self._mpi.Isend(self._memory(view), rank, tag)
        return message

    def receive(self, view: View, rank: int | None, tag: int) -> Message:
        from mpi4py import MPI

        message = Message(self, view, rank, tag, sends=False)
        message.request = self._mpi.Irecv(self._memory(view), MPI.ANY_SOURCE if rank is None else rank, tag)
        return message

    def progress(self, message: Message) -> None:
        from mpi4py import MPI

        with self.lock:
            if message.ended:
                return
            status = MPI.Status()
            try:
                message.ended = message.request.Test(status)
            except MPI.Exception as error:
                self.fail(message, CollectiveError(f"{message}: {error}; is it longer than where it is received?"))
                return
            if message.ended and not message.sends:
                message.rank = status.Get_source()
                self.expect(message, status.Get_count(MPI.BYTE))

    def pause(self) -> None:
        os.sched_yield()

    def close(self) -> None:
        self._mpi.Free()

    @staticmethod
    def _memory(view: View) -> Any:
        from mpi4py import MPI

        return [memory(view), MPI.BYTE]
