"""The contract on real ranks: python -m tests.programs.contract SEED CASES CALLS.

Every collective and algorithm, with parameters, dtype, operation, precision, place and count drawn by a seed that all
ranks share; then what only chosen numbers show; then many calls. Results are exact, and equal bit for bit on all ranks.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Any

import torch

import collectives
from collectives.algorithms import Algorithm, every
from collectives.contract import ROOTED
from collectives.dtypes import HALVES
from tests.programs import world
from tests.programs.engine_numbers import PAIRS, Guarded, bits, digest, inputs, noise, result, torch_dtype
from tests.programs.engine_report import Report
from tests.programs.engine_traffic import traffic

SEGMENTS = (None, None, 8, 64, 200, 4096, 65536)
ALLREDUCES = list(every("allreduce"))


@dataclass
class Case:
    algorithm: Algorithm
    params: dict[str, Any]
    dtype: str
    op: str
    count: int
    root: int
    seed: int
    way: str  # in place, out of place, without waiting, planned
    precision: str | None

    def __str__(self) -> str:
        what = f"{self.algorithm.collective} {self.algorithm.name} {self.params} {self.op} of {self.count} {self.dtype}"
        return f"{what}, root {self.root}, seed {self.seed}, {self.way}, {self.precision}"

    @property
    def how(self) -> dict[str, Any]:
        return {"algorithm": self.algorithm.name, "precision": self.precision, **self.params}


def draw_count(random: Random, size: int, algorithm: Algorithm) -> int:
    few = (0, 1, size - 1, size, size + 1, 31, 127, 129, 1009, 4099)
    return random.choice((*few, *few, 20_011 if algorithm.collective != "allgather" else 40_009))


def draw(random: Random, algorithm: Algorithm, size: int, dtype: str, op: str) -> Case:
    params = {p.name: random.choice(p.choices) for p in algorithm.parameters}
    count = draw_count(random, size, algorithm)
    if algorithm.pipelined:
        params["segment_bytes"] = random.choice(SEGMENTS)
        if params["segment_bytes"] and params["segment_bytes"] < 200:
            count = min(count, 1009)
    return Case(
        algorithm,
        params,
        dtype,
        op,
        count,
        random.randrange(size) if algorithm.collective in ROOTED else 0,
        random.randrange(1 << 30),
        random.choice(["in place", "out of place", "without waiting", "planned"]),
        random.choice([None, "fast", "accurate"]) if algorithm.collective == "allreduce" else None,
    )


def cases(random: Random, size: int, n: int) -> Iterator[Case]:
    """At least two of every algorithm, at least one of every dtype and operation."""
    algorithms = [*every(), *every(), *every("allreduce")]
    for i in range(n):
        algorithm = algorithms[i % len(algorithms)] if i < len(algorithms) else random.choice(ALLREDUCES)
        yield draw(random, algorithm, size, *(PAIRS[i % len(PAIRS)]))


def run_case(comm: collectives.Communicator, case: Case, report: Report) -> None:
    call = {
        "allreduce": allreduce,
        "reduce": reduce,
        "broadcast": broadcast,
        "reduce_scatter": reduce_scatter,
        "allgather": allgather,
    }[case.algorithm.collective]
    call(comm, case, report)


def run(comm: collectives.Communicator, collective: str, case: Case, x: Any, *args: Any, **more: Any) -> Any:
    """The collective, in the case's way."""
    if case.way == "planned" and (case.precision != "accurate" or case.dtype not in HALVES):
        planned = {name: value for name, value in case.how.items() if name != "precision" or value}
        plan = comm.plan(collective, x, *args, **more, **planned)
        return plan()
    method = getattr(comm, collective)
    if case.way == "without waiting":
        return method(x, *args, **more, **case.how, blocking=False).wait()
    return method(x, *args, **more, **case.how)


def allreduce(comm: collectives.Communicator, case: Case, report: Report) -> None:
    given = inputs(case.dtype, case.op, comm.size, case.count, case.seed)
    mine, wanted = Guarded(given[comm.rank], case.seed % 3), result(case.dtype, case.op, given)
    out = Guarded(torch.zeros_like(mine.x)) if case.way == "out of place" else mine
    got = run(comm, "allreduce", case, mine.x, None if out is mine else out.x, case.op)
    report.check(got is out.x, f"{case}: returns another tensor")
    report.equal(out.x, wanted, case)
    if out is not mine:
        report.equal(mine.x, given[comm.rank], f"{case}: the input")
    report.check(mine.intact() and out.intact(), f"{case}: wrote beside the message")
    report.agree(case, digest(out.x))


def reduce(comm: collectives.Communicator, case: Case, report: Report) -> None:
    given = inputs(case.dtype, case.op, comm.size, case.count, case.seed)
    mine, at_root = Guarded(given[comm.rank], case.seed % 3), comm.rank == case.root
    out = Guarded(torch.zeros_like(mine.x)) if case.way == "out of place" and at_root else mine
    run(comm, "reduce", case, mine.x, case.root, None if out is mine else out.x, case.op)
    wanted = result(case.dtype, case.op, given) if at_root else given[comm.rank]
    report.equal(out.x, wanted, case)
    if out is not mine:
        report.equal(mine.x, given[comm.rank], f"{case}: the input")
    report.check(mine.intact() and out.intact(), f"{case}: wrote beside the message")


def broadcast(comm: collectives.Communicator, case: Case, report: Report) -> None:
    wanted = noise(case.dtype, case.count, torch.Generator().manual_seed(case.seed))
    mine = Guarded(wanted if comm.rank == case.root else torch.zeros_like(wanted), case.seed % 3)
    run(comm, "broadcast", case, mine.x, case.root)
    report.equal(mine.x, wanted, case)
    report.check(mine.intact(), f"{case}: wrote beside the message")


def reduce_scatter(comm: collectives.Communicator, case: Case, report: Report) -> None:
    given = inputs(case.dtype, case.op, comm.size, case.count, case.seed)
    part = collectives.chunk(case.count, comm.size, comm.rank)
    mine, wanted = Guarded(given[comm.rank], case.seed % 3), result(case.dtype, case.op, given)[part]
    out = Guarded(torch.zeros_like(wanted)) if case.way == "out of place" else None
    got = run(comm, "reduce_scatter", case, mine.x, out.x if out else None, case.op)
    report.equal(got, wanted, case)
    report.equal(mine.x, given[comm.rank], f"{case}: the input")
    report.check(mine.intact(), f"{case}: wrote beside the message")
    report.check(out is None or out.intact(), f"{case}: wrote beside the chunk")


def allgather(comm: collectives.Communicator, case: Case, report: Report) -> None:
    wanted = noise(case.dtype, case.count, torch.Generator().manual_seed(case.seed))
    part = collectives.chunk(case.count, comm.size, comm.rank)
    out = Guarded(torch.zeros_like(wanted), case.seed % 3)
    x = wanted[part].clone()
    if case.way == "in place":
        out.x[part] = x
        x = out.x[part]
    even = case.count % comm.size == 0
    got = run(comm, "allgather", case, x, None if even and case.way == "planned" else out.x)
    report.equal(got, wanted, case)
    report.check(out.intact(), f"{case}: wrote beside the message")


# ---------------------------------------------------------------- chosen numbers
def cancellation(comm: collectives.Communicator, report: Report) -> None:
    """Large numbers that cancel leave small ones, whose bits tell in which order they were added."""
    for one, other in combinations(range(comm.size), 2):
        mine = {one: 1e6, other: -1e6}.get(comm.rank, 1e-2)
        for algorithm in ALLREDUCES:
            for segment in (None, 32):
                x = torch.full((41,), mine)
                comm.allreduce(x, algorithm=algorithm.name, segment_bytes=segment)
                report.agree((one, other, algorithm.name, segment), digest(x))


def in_rank_order(given: list[torch.Tensor]) -> torch.Tensor:
    total = given[0].to(torch.float32) if given[0].element_size() == 2 else given[0].clone()
    for x in given[1:]:
        total = total + x
    return total.to(given[0].dtype)


def fixed_order(comm: collectives.Communicator, report: Report, random: Random) -> None:
    """The same bits alone and within a larger message, by every algorithm that folds in order, in every place."""
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        generator = torch.Generator().manual_seed(random.randrange(1 << 30))
        given = [torch.randn(257, generator=generator).to(torch_dtype(dtype)) for _ in range(comm.size)]
        wanted = in_rank_order(given)
        for larger in (0, 3, 9000, 80_000):
            how: dict[str, Any] = random.choice(
                [{}, {"algorithm": "one_shot"}, {"algorithm": "two_shot"}, {"segment_bytes": 512}]
            )
            place = random.randrange(larger + 1)
            x = torch.zeros(257 + larger, dtype=torch_dtype(dtype))
            x[place : place + 257] = given[comm.rank]
            comm.allreduce(x, order="fixed", **how)
            report.equal(x[place : place + 257], wanted, f"order='fixed' {dtype} in {larger} more by {how}")
        x = given[comm.rank].repeat(3)
        part = collectives.chunk(3 * 257, comm.size, comm.rank)
        got = comm.reduce_scatter(x, order="fixed")
        report.equal(got, wanted.repeat(3)[part], f"order='fixed' reduce_scatter {dtype}")


def accuracy(comm: collectives.Communicator, report: Report) -> None:
    """One large term and small ones, which a sum rounded at each step would lose; each rank holds the large one."""
    for holder in range(comm.size):
        for dtype, large in (("bfloat16", 256), ("float16", 2048)):
            mine = large if comm.rank == holder else 1
            wanted = torch.full((70,), large + comm.size - 1.0).to(torch_dtype(dtype))
            for algorithm in ALLREDUCES:
                x = torch.full((70,), mine, dtype=torch_dtype(dtype))
                comm.allreduce(x, algorithm=algorithm.name, precision="accurate")
                report.equal(x, wanted, f"accurate {algorithm.name} {dtype}")
            strided = torch.full((70, 2), mine, dtype=torch_dtype(dtype))
            out = torch.zeros(70, dtype=torch_dtype(dtype))
            work = comm.allreduce(strided[:, 1], precision="accurate", blocking=False)
            comm.allreduce(strided[:, 0], out=out, precision="accurate")
            work.wait()
            report.equal(strided[:, 1], wanted, "accurate and strided, without waiting")
            report.equal(out, wanted, "accurate and strided, out of place")
            report.check(bool((strided[:, 0] == mine).all()), "accurate: the input is changed")
            several = [torch.full((35,), mine, dtype=torch_dtype(dtype)) for _ in range(2)]
            comm.allreduce(several, precision="accurate")
            report.equal(torch.cat(several), wanted, "accurate and coalesced")


def averages(comm: collectives.Communicator, report: Report) -> None:
    """Neither overflow, as when dividing last, nor underflow, as when dividing first."""
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        kind = torch_dtype(dtype)
        most, least = torch.finfo(kind).max, torch.tensor(1, dtype=bits(torch.zeros(1, dtype=kind)).dtype).view(kind)
        for value in (40000.0, most, float(least), -float(least), torch.inf):
            for algorithm in ALLREDUCES:
                x = torch.full((37,), value, dtype=kind)
                comm.allreduce(x, op="avg", algorithm=algorithm.name)
                bound = abs(value) * 2.0 ** (-20 if dtype == "float32" else -49) if value == most else 0.0
                near = not bound or bool(((x.double() - value).abs() <= bound).all())
                report.check(near, f"average of {value} by {algorithm.name} {dtype}: {x[0]}")
                if not bound:
                    report.equal(x, torch.full_like(x, value), f"average of {value} by {algorithm.name} {dtype}")


def weights(comm: collectives.Communicator, report: Report) -> None:
    """A dry run, which many ranks make, finds the weights that a few find without one."""
    plans = comm._plans
    for algorithm in ALLREDUCES:
        for segment in (None, 4096):
            call = plans.call("allreduce", "float32", 9, "avg", 0, algorithm.name, {"segment_bytes": segment})
            noted = plans._dry_run(call, plans._schedule(call))
            report.check(noted == plans._proved_weights(call), f"weights by {algorithm.name}, {segment}: {noted}")


def every_half(comm: collectives.Communicator, report: Report) -> None:
    """All bit patterns, the other rank's reversed: exactly the sum in float32, rounded once."""
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    for dtype in HALVES:
        kind = torch_dtype(dtype)
        both = patterns.view(kind), patterns.flip(0).view(kind)
        wanted = (both[0].float() + both[1].float()).to(kind)
        wanted[wanted.isnan()] = torch.nan
        for algorithm in ALLREDUCES:
            x = both[comm.rank].clone()
            comm.allreduce(x, algorithm=algorithm.name)
            report.equal(x, wanted, f"halves by {algorithm.name} {dtype}")


def main(seed: str, n: int, calls: int) -> None:
    report, random = Report(), Random(seed)
    with world.communicator(timeout=60) as comm:
        for case in cases(random, comm.size, n):
            run_case(comm, case, report)
        report.time("product")
        cancellation(comm, report)
        report.time("cancellation")
        fixed_order(comm, report, random)
        report.time("fixed order")
        accuracy(comm, report)
        report.time("accuracy")
        averages(comm, report)
        weights(comm, report)
        report.time("averages")
        if comm.size == 2:
            every_half(comm, report)
        traffic(comm, report, random, calls)
        topology = comm.topology
    report.finish(shape=topology.shape, links=topology.links)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
