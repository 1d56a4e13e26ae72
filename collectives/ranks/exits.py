"""How ranks leave: a job with a failed rank must end, and MPI's finalisation would wait for that rank for ever."""

import atexit
import os
import sys
from functools import cache
from typing import TYPE_CHECKING

from collectives.flight import recorder
from collectives.ranks import forks
from collectives.says import say

if TYPE_CHECKING:
    from collectives.channel import Channel

_channels: "list[Channel]" = []


def watch(channel: "Channel") -> None:
    """See to it that this process leaves in a way that ends the job, should the channel be broken by then."""
    _channels.append(channel)
    _register(os.getpid())
    if channel.comm.mpi is not None:
        hear_of_finalisation()


def channels() -> "tuple[Channel, ...]":
    """Those that have not been closed in order."""
    return tuple(_channels)


def abandon() -> "list[Channel]":
    """All of them, for which this process no longer answers."""
    gone = _channels.copy()
    _channels.clear()
    return gone


def forget(channel: "Channel") -> None:
    if channel in _channels and channel.broken is None:
        _channels.remove(channel)


@cache
def _register(pid: int) -> None:
    """Runs before mpi4py finalises, since it is registered after MPI was initialised."""
    atexit.register(leave, pid)
    recorder.listen()
    forks.watch()


@cache
def hear_of_finalisation() -> None:
    """MPI tells when somebody ends it before this process leaves; communicators over it then run nothing more."""
    from mpi4py import MPI

    def over(_comm: object, _key: int, _value: object) -> None:
        for channel in [channel for channel in _channels if channel.comm.mpi is not None]:
            if channel.hosts is not None:
                channel.hosts.read(channel.hosts.NOTHING)
            if channel.broken is None:
                channel.leave()
                channel.retire("MPI has been finalised: close communicators before, and make none after")
            _channels.remove(channel)

    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=over), True)


def leave(pid: int) -> None:
    """At exit: end the job if a communicator is broken, or if an exception nobody caught ends this process."""
    from collectives.native import layout as st

    if os.getpid() != pid:
        return
    several = [channel for channel in _channels if channel.comm.size > 1 and not channel.comm.over]
    broken = [channel for channel in several if channel.broken is not None]
    uncaught = getattr(sys, "last_value", None)
    if broken:
        seen = uncaught is broken[0].broken  # its traceback has been printed
        abort(broken[0], f"rank {broken[0].comm.rank} leaves after {'that' if seen else broken[0].broken}")
    elif several and uncaught is not None and not isinstance(uncaught, SystemExit):
        for channel in several:
            channel.tell(st.ABORTED)
        abort(several[0], f"rank {several[0].comm.rank} leaves after {type(uncaught).__name__}: {uncaught}")
    for channel in _channels:
        if channel.broken is None:
            channel.leave()


def abort(channel: "Channel", why: str) -> None:
    """End the job at once, not zero.

    One rank of a node tells the launcher, the others just end: Open MPI's mpiexec may hang when told twice at a time.
    """
    say(why)
    sys.stdout.flush()
    if channel.endpoint.is_first_to_leave():
        channel.comm.end_job()
    os._exit(1)
