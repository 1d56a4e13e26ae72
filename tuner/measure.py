"""Timing candidates on all ranks: rank 0 says what to measure, all do it, rank 0 gets the times.

A time is that of the slowest rank, from a barrier to its own return, with the input freshly written before. Candidates
are interleaved in random order, the same on all ranks: one turn of each makes a block, and times of one block are
compared with each other. Before its first timing a candidate must give the right result.

Decisions travel as JSON bytes from rank 0, agreement as typed reductions: no rank decides by itself, and what fails on
one rank fails on all.
"""

import gc
import json
import random
from array import array
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import IO, Any

import msgspec

from collectives.errors import CollectiveError
from tuner.cases import Case
from tuner.contenders import Gloo, Run, run_of
from tuner.space import Candidate

GLOO = Candidate("gloo")
SLOW_NS = 200_000_000  # a call this long is not warmed up again


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks do next: time these candidates in so many blocks, or, without any, stop."""

    collective: str = ""
    dtype: str = ""
    op: str = ""
    nbytes: int = 0
    candidates: list[tuple[str, dict[str, Any]]] = []
    blocks: int = 0
    seed: int = 0
    stage: str = ""
    check: bool = False  # count wrong elements once more after the timing


class Outcome(msgspec.Struct, kw_only=True):
    """Microseconds of each candidate that ran, one a block; what failed and why; seconds a block took.

    `wrong`: elements that were wrong on the rank with most of them, after the timing, where the job asked for it.
    """

    times: dict[Candidate, list[float]]
    faults: dict[Candidate, str]
    block_seconds: float
    interrupted: bool
    wrong: dict[Candidate, int] = {}


class Stopped(Exception):
    """All ranks agree that nothing more can be measured; the message says why."""


class Session:
    """All ranks of a measurement. Rank 0 calls `measure` and at last `stop`; the others `follow`."""

    def __init__(self, mpi: Any, comm: Any, samples: IO[str] | None = None):
        self.mpi, self.comm, self.samples = mpi, comm, samples
        self.interrupted = False  # set by a signal handler; all ranks see it at the end of a job
        self.jobs = 0
        self._case: Case | None = None
        self._key: tuple[Any, ...] = ()
        self._runs: dict[Candidate, Run] = {}
        self._gloo: Gloo | None = None

    # ------------------------------------------------------------ what rank 0 calls
    def measure(self, job: Job) -> Outcome:
        """Rank 0: have all ranks do a job. Stopped where nothing more can be measured."""
        self._send(job)
        return self._do(job)

    def stop(self) -> None:
        """Rank 0: let the others go."""
        self._send(Job())

    # ------------------------------------------------------------ what the others call
    def follow(self) -> None:
        """Ranks but 0: do what rank 0 says until it says stop."""
        while (job := self._receive()).candidates:
            try:
                self._do(job)
            except Stopped:
                continue

    # ------------------------------------------------------------ what all do
    def _do(self, job: Job) -> Outcome:
        self.jobs += 1
        self._prepare_case(job)
        wanted = [Candidate(name, tuple(sorted(params.items()))) for name, params in job.candidates]
        faults = {}
        for candidate in wanted:
            if candidate not in self._runs:
                fault = self._prepare(candidate)
                if fault is not None:
                    faults[candidate] = fault
        running = [candidate for candidate in wanted if candidate not in faults]
        started = perf_counter_ns()
        times = self._blocks(running, job.blocks, job.seed) if running else array("q")
        seconds = (perf_counter_ns() - started) / 1e9
        stop = array("q", [self.interrupted])
        self._largest(times)
        self._largest(stop)
        by_candidate = {
            candidate: [ns / 1e3 for ns in times[place :: len(running)]] for place, candidate in enumerate(running)
        }
        self._record(job, by_candidate)
        return Outcome(
            times=by_candidate,
            faults=faults,
            block_seconds=seconds / max(1, job.blocks),
            interrupted=bool(stop[0]),
            wrong={candidate: self._wrong(candidate) for candidate in running} if job.check else {},
        )

    def _prepare_case(self, job: Job) -> None:
        key = job.collective, job.dtype, job.op, job.nbytes
        if key != self._key:
            self._runs.clear()
            self._case = Case(*key, self.mpi.rank, self.mpi.size)
            self._key = key

    def _prepare(self, candidate: Candidate) -> str | None:
        """Make the candidate's run and check its result. None, or what is wrong, the same on all ranks."""
        assert self._case is not None
        run: Run | None = None
        fault = None
        try:
            run = self._gloo_run() if candidate == GLOO else run_of(self.comm, self.mpi, self._case, candidate)
        except Exception as error:  # noqa: BLE001 - a candidate's failure is a result, whatever it is
            fault = f"{type(error).__name__}: {error}"
        if (agreed := self._agree(fault)) is not None:
            return agreed
        assert run is not None
        for _ in range(2):  # the second result counts too, as it may come from what the first left; and it warms up
            fault, broken, ns = self._attempt(run)
            slow = array("q", [ns])
            self._largest(slow)
            if (agreed := self._agree(fault)) is not None:
                if (why := self._agree(broken)) is not None:
                    raise Stopped(f"{candidate} broke the communicator: {why}")
                return agreed
            if slow[0] > SLOW_NS:
                break
        self._runs[candidate] = run
        return None

    def _attempt(self, run: Run) -> tuple[str | None, str | None, int]:
        """One run on this rank: what is wrong, what broke the communicator, nanoseconds."""
        case = self._case
        assert case is not None
        case.spoil()
        case.write()
        started = perf_counter_ns()
        try:
            run()
        except CollectiveError as error:
            said = f"{type(error).__name__}: {error}"
            return said, said, 0
        except Exception as error:  # noqa: BLE001 - as above
            return f"{type(error).__name__}: {error}", None, 0
        ns = perf_counter_ns() - started
        wrong = case.wrong()
        return f"{wrong} of {case.count} elements are wrong" if wrong else None, None, ns

    def _wrong(self, candidate: Candidate) -> int:
        case = self._case
        assert case is not None
        case.spoil()
        case.write()
        self._runs[candidate]()
        found = array("q", [case.wrong()])
        self._largest(found)
        return found[0]

    def _blocks(self, candidates: Sequence[Candidate], blocks: int, seed: int) -> "array[int]":
        """Nanoseconds on this rank: block by block, candidates in their order within each."""
        case, barrier, now = self._case, self.comm.barrier, perf_counter_ns
        assert case is not None
        write, rng = case.write, random.Random(seed)
        runs = [self._runs[candidate] for candidate in candidates]
        times, width = array("q", bytes(8 * blocks * len(runs))), len(runs)
        collecting = gc.isenabled()
        gc.disable()
        try:
            for block in range(blocks):
                for place in rng.sample(range(width), width):
                    run = runs[place]
                    write()
                    barrier()
                    started = now()
                    run()
                    times[block * width + place] = now() - started
        finally:
            if collecting:
                gc.enable()
        return times

    def _gloo_run(self) -> Run:
        assert self._case is not None
        if self._gloo is None:
            self._gloo = Gloo(self.mpi)
        return self._gloo.run(self._case)

    def close(self) -> None:
        self._runs.clear()
        if self._gloo is not None:
            self._gloo.close()
            self._gloo = None

    # ------------------------------------------------------------ agreement
    def _largest(self, values: "array[int]") -> None:
        from mpi4py import MPI

        self.mpi.Allreduce(MPI.IN_PLACE, [values, MPI.INT64_T], MPI.MAX)

    def _agree(self, fault: str | None) -> str | None:
        """None if no rank has a fault; else that of the first rank that has one, with its number."""
        first = array("q", [0 if fault is None else self.mpi.size - self.mpi.rank])
        self._largest(first)
        if not first[0]:
            return None
        root = self.mpi.size - first[0]
        return f"rank {root}: {self._broadcast((fault or '').encode(), root).decode()}"

    def _send(self, job: Job) -> None:
        self._broadcast(msgspec.json.encode(job), 0)

    def _receive(self) -> Job:
        return msgspec.json.decode(self._broadcast(b"", 0), type=Job)

    def _broadcast(self, data: bytes, root: int) -> bytes:
        from mpi4py import MPI

        length = array("q", [len(data)])
        self.mpi.Bcast([length, MPI.INT64_T], root)
        buffer = bytearray(data if self.mpi.rank == root else length[0])
        self.mpi.Bcast([buffer, MPI.BYTE], root)
        return bytes(buffer)

    def _record(self, job: Job, times: dict[Candidate, list[float]]) -> None:
        """Raw samples, a line for each candidate of a job; lines with one `job` were interleaved."""
        if self.samples is None or self.mpi.rank:
            return
        for candidate, found in times.items():
            line = {
                "job": self.jobs, "stage": job.stage, "collective": job.collective, "dtype": job.dtype, "op": job.op,
                "bytes": job.nbytes, "algorithm": candidate.algorithm, "params": candidate.params, "us": found,
            }  # fmt: skip
            self.samples.write(json.dumps(line) + "\n")
        self.samples.flush()


def read_samples(path: Path) -> list[dict[str, Any]]:
    """Lines of a file of raw samples; a torn last line, of a run that was killed, is left out."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines
