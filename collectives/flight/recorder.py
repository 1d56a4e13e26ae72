"""When the flight recorder speaks: with an error that breaks a communicator, and on SIGUSR1. One rank of a node does.

The report travels as a note of the exception, so that it is seen where the error is, and not where somebody handles it.
"""

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives.flight.report import report
from collectives.native import layout as st
from collectives.says import say

if TYPE_CHECKING:
    from collectives.channel import Channel

INCIDENT_NS = 5_000_000_000  # in which what several ranks report is the same thing
SETTLE_SECONDS = 0.02  # for ranks that claim at once to see each other


def note(channel: "Channel", error: BaseException) -> None:
    """Add the report to an error, unless another rank of the node does."""
    if channel.comm.size > 1 and speaks(channel):
        error.add_note(f"flight recorder: {of_this_process()}")


def of_this_process(history: bool = False) -> str:
    """What this process's communicators are at, on all ranks of the node."""
    from collectives.ranks.exits import channels

    records = [channel.endpoint.record for channel in channels()]
    return report([there for each in records if each and (there := each.snapshot()) is not None], history=history)


def speaks(channel: "Channel") -> bool:
    """Whether this rank reports; the first that claims it does, and nobody else for a while."""
    record = channel.endpoint.record
    if record is None:
        return True
    me = channel.node.rank
    record.board(me)[st.REPORTED] = mine = time.monotonic_ns()
    time.sleep(SETTLE_SECONDS)
    claims = ((int(record.board(i)[st.REPORTED]), i) for i in range(channel.node.size))
    recent = [(at, i) for at, i in claims if at > mine - INCIDENT_NS]
    return min(recent) == (mine, me)


def listen() -> None:
    """From now on report on SIGUSR1, where nobody but an MPI library handles that signal; its handler is called too."""
    if threading.current_thread() is not threading.main_thread():
        return
    handler = handler_of(signal.SIGUSR1)
    if handler == signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, on_signal)
    elif Path(library_of(handler)).name.startswith("libmpi"):
        theirs = ctypes.CFUNCTYPE(None, ctypes.c_int)(handler)

        def both(number: int, frame: Any) -> None:
            theirs(number)
            on_signal(number, frame)

        signal.signal(signal.SIGUSR1, both)


def handler_of(number: int) -> int:
    """The address of what handles a signal, whoever has set it; 0 and 1 are what they are to signal.signal."""
    found = (ctypes.c_void_p * 32)()  # a struct sigaction, which begins with it
    if ctypes.CDLL(None).sigaction(number, None, found):
        return int(signal.SIG_IGN)
    return found[0] or 0


def library_of(address: int) -> str:
    """The path of the shared library that has a function; empty where none has."""
    found = (ctypes.c_char_p * 4)()  # a Dl_info, which begins with it
    there = ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), found) if address > 1 else 0
    return os.fsdecode(found[0] or b"") if there else ""


def on_signal(_number: int, _frame: Any) -> None:
    from collectives.ranks.exits import channels

    with_boards = [channel for channel in channels() if channel.endpoint.record is not None]
    if not with_boards:
        say("flight recorder: no communicator of several ranks")
    elif speaks(with_boards[0]):
        say(f"flight recorder: {of_this_process(history=True)}")
