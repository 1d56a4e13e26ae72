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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import IO, Any

import msgspec

from collectives.errors import CollectiveError
from collectives.tables.table import ORDINARY, SYMMETRIC
from tuner.cases import Case
from tuner.contenders import Gloo, Run, run_of
from tuner.space import Candidate

GLOO = Candidate("gloo")
SLOW_NS = 200_000_000  # a call this long is not warmed up again


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks do next: time these candidates in so many blocks, or, without any, stop.

    Candidates whose first look took more than `hopeless` times that of the first candidate are not timed.
    """

    collective: str = ""
    dtype: str = ""
    op: str = ""
    nbytes: int = 0
    storage: str = ORDINARY
    precision: str | None = None  # of the calls
    candidates: list[tuple[str, dict[str, Any]]] = []
    blocks: int = 0
    seed: int = 0
    stage: str = ""
    hopeless: float | None = None
    check: bool = False  # count wrong elements once more after the timing


@dataclass
class Outcome:
    """Microseconds of each candidate that was timed, one a block; one call's when it was prepared; what failed and why.

    `wrong`: elements that were wrong on the rank with most of them, after the timing, where the job asked for it.
    """

    times: dict[Candidate, list[float]]
    looks: dict[Candidate, float]
    faults: dict[Candidate, str]
    block_seconds: float
    interrupted: bool
    wrong: dict[Candidate, int]


class Stopped(Exception):
    """All ranks agree that nothing more can be measured; the message says why."""


class Session:
    """All ranks of a measurement. Rank 0 calls `measure` and at last `stop`; the others `follow`."""

    def __init__(self, mpi: Any, comm: Any, samples: IO[str] | None = None, last_job: int = 0):
        self.mpi, self.comm, self.samples, self.last_job = mpi, comm, samples, last_job
        self.interrupted = False  # set by a signal handler; all ranks see it at the end of a job
        self.jobs = 0
        self._case: Case | None = None
        self._key: tuple[Any, ...] = ()
        self._precision: str | None = None
        self._runs: dict[Candidate, Run] = {}
        self._looks: dict[Candidate, float] = {}  # microseconds of one call
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
        faults = self._prepare([each for each in wanted if each not in self._runs])
        ready = [each for each in wanted if each not in faults]
        limit = job.hopeless * self._looks[ready[0]] if job.hopeless and ready else float("inf")
        running = [each for each in ready if self._looks[each] <= limit]
        started = perf_counter_ns()
        times = self._blocks(running, job.blocks, job.seed) if running else array("q")
        seconds = (perf_counter_ns() - started) / 1e9
        self._largest(times)
        stop = array("q", [self.interrupted])
        self._largest(stop)
        timed = {each: [ns / 1e3 for ns in times[place :: len(running)]] for place, each in enumerate(running)}
        self._record(job, timed)
        return Outcome(
            times=timed if job.blocks else {},
            looks={each: self._looks[each] for each in ready},
            faults=faults,
            block_seconds=seconds / max(1, job.blocks),
            interrupted=bool(stop[0]),
            wrong={each: self._wrong(each) for each in running} if job.check else {},
        )

    def _prepare_case(self, job: Job) -> None:
        call = job.collective, job.dtype, job.op, job.nbytes
        if (*call, job.storage, job.precision) != self._key:
            self._runs.clear()
            self._looks.clear()
            shares = self.comm.empty if job.storage == SYMMETRIC else None
            self._case = Case(*call, self.mpi.rank, self.mpi.size, shares)
            self._key, self._precision = (*call, job.storage, job.precision), job.precision

    def _prepare(self, candidates: list[Candidate]) -> dict[Candidate, str]:
        """Make the candidates' runs, and check their results, twice: the second one may come from what the first left.

        Gives what is wrong with those that fail, the same on all ranks. Stopped where the communicator broke.
        """
        if not candidates:
            return {}
        runs: dict[Candidate, Run] = {}
        faults: dict[Candidate, str] = {}
        for candidate in candidates:
            try:
                runs[candidate] = self._make(candidate)
            except Exception as error:  # noqa: BLE001 - a candidate's failure is a result, whatever it is
                faults[candidate] = f"{type(error).__name__}: {error}"
        failed = self._agree(candidates, faults)
        for _ in range(2):
            going = [each for each in candidates if each not in failed]
            looks, faults, broken = array("q", bytes(8 * len(going))), {}, {}
            for place, candidate in enumerate(going):
                try:
                    looks[place] = self._attempt(runs[candidate])
                except CollectiveError as error:
                    broken[candidate] = faults[candidate] = f"{type(error).__name__}: {error}"
                    break
                except Exception as error:  # noqa: BLE001 - as above
                    faults[candidate] = f"{type(error).__name__}: {error}"
            self._largest(looks)
            failed |= self._agree(going, faults)
            for candidate, why in self._agree(going, broken).items():
                raise Stopped(f"{candidate} broke the communicator: {why}")
            self._looks |= {each: ns / 1e3 for each, ns in zip(going, looks, strict=True)}
            if all(ns > SLOW_NS for ns in looks):
                break
        self._runs |= {each: runs[each] for each in candidates if each not in failed}
        return failed

    def _make(self, candidate: Candidate) -> Run:
        assert self._case is not None
        if candidate != GLOO:
            return run_of(self.comm, self.mpi, self._case, candidate, self._precision)
        if self._gloo is None:
            self._gloo = Gloo(self.mpi)
        return self._gloo.run(self._case)

    def _attempt(self, run: Run) -> int:
        """Nanoseconds of one run on this rank. ArithmeticError where its result is wrong."""
        case = self._case
        assert case is not None
        case.spoil()
        case.write()
        self.comm.barrier()
        started = perf_counter_ns()
        run()
        ns = perf_counter_ns() - started
        if wrong := case.wrong():
            raise ArithmeticError(f"{wrong} of {case.count} elements are wrong")
        return ns

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

    def close(self) -> None:
        self._runs.clear()
        if self._gloo is not None:
            self._gloo.close()
            self._gloo = None

    # ------------------------------------------------------------ agreement
    def _largest(self, values: "array[int]") -> None:
        from mpi4py import MPI

        self.mpi.Allreduce(MPI.IN_PLACE, [values, MPI.INT64_T], MPI.MAX)

    def _agree(self, candidates: Sequence[Candidate], faults: Mapping[Candidate, str]) -> dict[Candidate, str]:
        """Faults that any rank has, with the number and the words of the first rank that has it; the same on all."""
        first = array("q", [self.mpi.size - self.mpi.rank if each in faults else 0 for each in candidates])
        self._largest(first)
        agreed = {}
        for candidate, found in zip(candidates, first, strict=True):
            if found:
                root = self.mpi.size - found
                text = self._broadcast(faults.get(candidate, "").encode(), root).decode()
                agreed[candidate] = f"rank {root}: {text}"
        return agreed

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
        """Raw samples, a line for each candidate of a job; lines with one `job` were interleaved.

        Jobs are numbered on from those that the file has of earlier runs.
        """
        if self.samples is None or self.mpi.rank:
            return
        for candidate, found in times.items():
            line = {
                "job": self.last_job + self.jobs, "stage": job.stage, "collective": job.collective,
                "dtype": job.dtype, "op": job.op, "storage": job.storage, "bytes": job.nbytes,
                "algorithm": candidate.algorithm, "params": candidate.params, "us": found,
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
