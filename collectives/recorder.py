"""When the flight recorder speaks: with an error that breaks a communicator, and on SIGUSR1. One rank speaks for its node.

The report travels as a note of the exception, so that it is seen where the error is, and not where somebody handles it.
"""

import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives.native import layout as st
from collectives.report import report
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
    from collectives.exits import channels

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
    """From now on report on SIGUSR1, where nothing else wants that signal."""
    if threading.current_thread() is threading.main_thread() and not caught(signal.SIGUSR1):
        signal.signal(signal.SIGUSR1, on_signal)


def caught(number: int) -> bool:
    """Whether the process handles or ignores a signal; Python does not know of handlers that others have set."""
    masks = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return bool((int(masks["SigCgt"], 16) | int(masks["SigIgn"], 16)) >> (number - 1) & 1)


def on_signal(_number: int, _frame: Any) -> None:
    from collectives.exits import channels

    with_boards = [channel for channel in channels() if channel.endpoint.record is not None]
    if not with_boards:
        say("flight recorder: no communicator of several ranks")
    elif speaks(with_boards[0]):
        say(f"flight recorder: {of_this_process(history=True)}")
