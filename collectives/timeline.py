"""TREERING_TIMELINE=FILE: every collective of this process, as a trace that Perfetto and chrome://tracing show.

Each rank writes a file of its own: `{rank}` in the name is its number, and where several ranks share a name without it
the number goes before the suffix (trace.json: trace.0.json, trace.1.json). Events are written as they end, so a job
that is killed leaves them too (viewers do not miss the last bracket). Times are those of CLOCK_MONOTONIC, which all
processes of a host share. One file of all ranks:

    python -m collectives.timeline trace.*.json > trace.json

An event has the collective's name and algorithm, and as arguments bytes, dtype, op, the algorithm's reason, and how
long this rank waited there for the last of its node (`waited_us`; null where that is not known: ranks on several nodes,
or no board in shared memory).
"""

import atexit
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from collectives.dtypes import ITEMSIZE
from collectives.flight.diagnosis import NO_OP, fields
from collectives.native import layout as st
from collectives.says import say

if TYPE_CHECKING:
    from collectives.channel import Channel
    from collectives.engine import Work

VARIABLE = "TREERING_TIMELINE"


class Timeline:
    """One process's file. `rank` is the number of the process among `size`, whatever communicators it has."""

    def __init__(self, path: str, rank: int, size: int):
        """OSError where the file cannot be written."""
        self.rank, self.pid = rank, os.getpid()
        self._file = open(file_name(path, rank, size), "w", encoding="utf-8")  # noqa: SIM115 - until exit
        self._numbers: WeakKeyDictionary[Channel, int] = WeakKeyDictionary()
        self._made, self._comma = 0, ""
        self._file.write("[\n")
        self._write("process_name", 0, {"name": f"rank {rank}"})
        atexit.register(self.close)

    def add(self, work: "Work") -> None:
        """A call that has ended, well or not."""
        program, channel = work.program, work.channel
        called = fields(list(program.state[st.FINGERPRINT_0 : st.FINGERPRINT_3 + 1]))
        count = 0 if called["collective"] == "barrier" else int(str(called["count"]))
        dtype = str(called["dtype"])
        arguments: dict[str, Any] = {"bytes": count * ITEMSIZE[dtype], "dtype": dtype}
        if called["op"] != NO_OP:
            arguments["op"] = called["op"]
        if program.choices is not None:
            choice = program.choices.ran(program)
            arguments |= {"algorithm": choice.algorithm, "reason": choice.reason}
        arguments["waited_us"] = waited_us(channel, work.sequence)
        if work.error is not None:
            arguments["error"] = f"{type(work.error).__name__}: {work.error}"
        name = f"{called['collective']} {arguments.get('algorithm', '')}".rstrip()
        self.span(channel, name, work.started_ns, work.ended_ns, arguments)

    def span(self, channel: "Channel", name: str, began_ns: int, ended_ns: int, arguments: dict[str, Any]) -> None:
        """Something that a communicator did between two moments of time.monotonic_ns()."""
        if self._file.closed or os.getpid() != self.pid:  # a child that was forked
            return
        if channel not in self._numbers:
            self._made += 1
            self._numbers[channel] = self._made
            ranks = f"communicator {self._made}: rank {channel.comm.rank} of {channel.comm.size}"
            self._write("thread_name", self._made, {"name": ranks})
        times = {"ts": began_ns / 1e3, "dur": (ended_ns - began_ns) / 1e3}
        self._write(name, self._numbers[channel], arguments, ph="X", cat="collective", **times)

    def _write(self, name: str, thread: int, arguments: dict[str, Any], ph: str = "M", **more: Any) -> None:
        event = {"name": name, "ph": ph, "pid": self.rank, "tid": thread, **more, "args": arguments}
        self._file.write(self._comma + json.dumps(event))
        self._file.flush()
        self._comma = ",\n"

    def close(self) -> None:
        """The trace's end, where the process ends in order."""
        if not self._file.closed and os.getpid() == self.pid:
            self._file.write("\n]\n")
            self._file.close()


def file_name(path: str, rank: int, size: int) -> Path:
    """A rank's own file."""
    if "{rank}" in path:
        return Path(path.replace("{rank}", str(rank)))
    whole = Path(path)
    return whole.with_name(f"{whole.stem}.{rank}{whole.suffix}") if size > 1 else whole


def waited_us(channel: "Channel", sequence: int) -> float | None:
    """Microseconds from when this rank came to a call until the last rank had."""
    size = channel.comm.size
    if size == 1:
        return 0.0
    came = channel.arrivals(sequence) if len(channel.ranks_of_node) == size else None
    return None if came is None else (max(came.values()) - came[channel.comm.rank]) / 1e3


def watch(channel: "Channel", now: Timeline | None) -> Timeline | None:
    """The process's timeline, opened with its first communicator; `now` is the one there is. None where none is asked.

    Where the file cannot be written, a line says so and nothing is recorded.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return now
    channel.stamp()
    if now is not None:
        return now
    rank, size = channel.comm.rank, channel.comm.size
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and mpi.COMM_WORLD.size > size:
        rank, size = mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size
    try:
        return Timeline(path, rank, size)
    except OSError as error:
        say(f"no timeline: {VARIABLE}={path}: {error.strerror}")
        return None


def merged(paths: Sequence[str]) -> list[dict[str, Any]]:
    """The events of several files; one that a killed process has left unfinished is read as far as it goes."""
    events: list[dict[str, Any]] = []
    for path in paths:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            if line not in ("[", "]"):
                with suppress(json.JSONDecodeError):
                    events.append(json.loads(line.rstrip(",")))
    return events


if __name__ == "__main__":
    json.dump(merged(sys.argv[1:]), sys.stdout)
