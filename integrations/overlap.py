"""When DDP's buckets are averaged: by the training thread as it comes by, or by a helper thread beside it.

Inline, a bucket's call is begun when the bucket is ready, and goes as far as it can without waiting; what is left is
done at the end of the backward pass. So ranks that are not equally fast wait for each other once a step, and not at
each bucket. A helper thread does the same calls, in the same order, without the interpreter's lock, and sleeps between
looks: it never spins beside a rank that computes. It is worth it where a core is free for it, and may be where wires
between nodes move what it has handed to them.
"""

import atexit
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, Protocol

import torch

import collectives
from collectives.engine import Work
from collectives.errors import UnsupportedError
from integrations.buckets import Bucket

Mode = Literal["thread", "inline"]
Overlap = Literal["auto", "thread", "inline"]

LOOK_SECONDS = 1e-4  # between two looks of the helper at a call that waits
LEAVE_SECONDS = 2.0  # that a process which ends gives its helper
SETTLING_STEPS = 5  # in which buckets are rebuilt and move
TRIAL_STEPS = 8  # done each way, in turn
MASK_BYTES = 128  # of a set of cores


@dataclass
class Job:
    """One bucket of one step. `submit` starts its call; it is done when `work` has ended without an error."""

    bucket: Bucket
    tensor: torch.Tensor
    submit: Callable[["Job"], Work]
    future: "torch.futures.Future[torch.Tensor] | None" = None
    work: Work | None = None
    error: BaseException | None = None
    seconds: float = 0.0  # of communication
    waited: float = 0.0  # for which training stood still
    ended: threading.Event = field(default_factory=threading.Event)


class Runner(Protocol):
    def begin(self, job: Job) -> None:
        """Start a job, behind the earlier ones."""

    def finish(self, job: Job) -> None:
        """Wait until it is done. Raises what made it fail."""


class Inline:
    """The training thread does it. `sleeps`: while it waits, so that the kernel gives its core to a rank that computes.

    (A rank that only yields looks busy: two of them can hold a core while two others share the next one.)
    """

    def __init__(self, sleeps: bool = False):
        self.sleeps = sleeps

    def begin(self, job: Job) -> None:
        job.work = job.submit(job)
        job.work.done()

    def finish(self, job: Job) -> None:
        assert job.work is not None
        while self.sleeps and not job.work.done():
            time.sleep(LOOK_SECONDS)
        job.work.wait()


class Helper:
    """A thread does it. It ends with `stop`, with the process, or when nobody holds the helper any more."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._leaving = threading.Event()
        arguments = self._jobs, self._leaving
        self._thread = threading.Thread(target=work_through, args=arguments, name="treering-ddp", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._jobs.put, None).atexit = False
        atexit.register(leave, *arguments, weakref.ref(self._thread))

    def begin(self, job: Job) -> None:
        if self._thread.is_alive():
            self._jobs.put(job)
        else:  # stopped, as its communicator is: the call says so
            job.submit(job)

    def finish(self, job: Job) -> None:
        job.ended.wait()
        if job.error is not None:
            raise job.error

    def stop(self) -> None:
        """Let it do what it has, and wait until it has ended."""
        self._jobs.put(None)
        self._thread.join()


def work_through(jobs: "queue.SimpleQueue[Job | None]", leaving: threading.Event) -> None:
    """The helper thread: one job after the other."""
    while (job := jobs.get()) is not None:
        begun = time.perf_counter()
        try:
            job.work = job.submit(job)
            while not job.work.done() and not leaving.is_set():
                time.sleep(LOOK_SECONDS)
        except BaseException as error:  # noqa: BLE001 - it is raised by whoever waits for the job
            job.error = error
        job.seconds = time.perf_counter() - begun
        job.ended.set()
        del job  # which holds the state, and so the helper


def leave(jobs: "queue.SimpleQueue[Any]", leaving: threading.Event, thread: "weakref.ref[threading.Thread]") -> None:
    """At exit, before MPI is finalised: the call under way is left as it is."""
    leaving.set()
    jobs.put(None)
    there = thread()
    if there is not None:
        there.join(LEAVE_SECONDS)


class Trial:
    """Steps in turn inline and with the helper, until it is known which are faster."""

    def __init__(self, settling: int = SETTLING_STEPS, each: int = TRIAL_STEPS):
        self._settling, self._each, self._steps = settling, each, 0
        self._seconds: dict[Mode, list[float]] = {"inline": [], "thread": []}
        self.mode: Mode = "inline"  # of the next step
        self.verdict: Mode | None = None

    def took(self, seconds: float) -> None:
        """How long the step took, from its first bucket to its last."""
        self._steps += 1
        if self.verdict is not None or self._steps <= self._settling:
            return
        self._seconds[self.mode].append(seconds)
        inline, thread = self._seconds["inline"], self._seconds["thread"]
        self.mode = "inline" if len(inline) <= len(thread) else "thread"
        if min(len(inline), len(thread)) == self._each:
            self.mode = self.verdict = "thread" if median(thread) < median(inline) else "inline"


class Progress:
    """How a state's jobs are done, step by step."""

    def __init__(self, wanted: Overlap, comm: "collectives.Communicator"):
        """Collective. UnsupportedError for "thread" where MPI allows one thread only."""
        if wanted == "thread" and not allowed():
            raise UnsupportedError('overlap="thread" needs MPI with MPI_THREAD_MULTIPLE; overlap="inline" does not')
        spare = spare_cores(comm) if comm.size > 1 else 0
        may_help = spare > 0 or len(comm.topology.nodes) > 1
        self.trial = Trial() if wanted == "auto" and may_help and allowed() else None
        self._fixed: Mode = "thread" if wanted == "thread" else "inline"
        self._inline, self._helper = Inline(sleeps=spare < 0), None  # type: Inline, Helper | None

    @property
    def mode(self) -> Mode:
        """Of the next step."""
        return self._fixed if self.trial is None else self.trial.mode

    def runner(self) -> Runner:
        """For the jobs of the next step."""
        if self.mode == "inline":
            return self._inline
        if self._helper is None:
            self._helper = Helper()
        return self._helper

    @property
    def settling(self) -> bool:
        """Whether it is still tried out."""
        return self.trial is not None and self.trial.verdict is None

    def took(self, seconds: float) -> None:
        if self.trial is not None:
            self.trial.took(seconds)

    def stop(self) -> None:
        if self._helper is not None:
            self._helper.stop()


def allowed() -> bool:
    """Whether a thread beside the main one may call MPI, where there is MPI."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is None or not mpi.Is_initialized() or mpi.Query_thread() == mpi.THREAD_MULTIPLE


# ---------------------------------------------------------------- cores
def spare_cores(comm: "collectives.Communicator") -> int:
    """What the node with the fewest cores for its ranks has, as `spare`. Collective."""
    cores = sum(1 << core for core in os.sched_getaffinity(0) if core < 8 * MASK_BYTES)
    said = cores.to_bytes(MASK_BYTES, "little") + torch.get_num_threads().to_bytes(8, "little")
    mine = torch.frombuffer(bytearray(said), dtype=torch.uint8)
    everyone = torch.empty(len(said) * comm.size, dtype=torch.uint8)
    comm.allgather(mine, out=everyone)
    told = [bytes(part.tolist()) for part in everyone.split(len(said))]
    return min(spare([told[rank] for rank in node]) for node in comm.topology.nodes)


def spare(node: Sequence[bytes]) -> int:
    """1: each rank of a node has a core beside those that its torch threads compute on. -1: these lack cores. Else 0.

    `node`: what each of its ranks said, the set of cores that it may use, and its torch threads.
    """
    cores, threads = 0, 0
    for said in node:
        cores |= int.from_bytes(said[:MASK_BYTES], "little")
        threads += int.from_bytes(said[MASK_BYTES:], "little")
    free = cores.bit_count() - threads
    return 1 if free >= len(node) else -1 if free < 0 else 0
