"""The contract on real ranks: python -m tests.programs.contract SEED CASES CALLS.

Every collective and algorithm, with parameters, dtype, operation, precision, place and count drawn by a seed that all
ranks share; then what only chosen numbers show; then many calls. Results are exact, and equal bit for bit on all ranks.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from random import Random
from typing import Any

import torch

import collectives
from collectives.algorithms import Algorithm, every
from collectives.dtypes import HALVES
from collectives.topology import Topology
from tests.programs import moves, world
from tests.programs.drawn import Case, draw, run
from tests.programs.engine_numbers import PAIRS, Guarded, bits, digest, inputs, noise, result, torch_dtype
from tests.programs.engine_report import Report
from tests.programs.engine_traffic import traffic

Some = Sequence[Algorithm]
SOME = 8  # allreduces that a launch asks for chosen numbers: others in each launch


def cases(random: Random, topology: Topology, n: int) -> Iterator[Case]:
    """One of every algorithm, then any; at least one of every dtype and operation."""
    size = topology.ranks
    algorithms = [a for a in every() if not a.refusal(size, a.groups(topology))]
    for i in range(max(n, len(algorithms))):
        algorithm = algorithms[i] if i < len(algorithms) else random.choice(algorithms)
        yield draw(random, algorithm, size, *(PAIRS[(i * 7) % len(PAIRS)]))


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


RUNS: dict[str, Callable[[collectives.Communicator, Case, Report], None]] = {
    "allreduce": allreduce, "reduce": reduce, "broadcast": broadcast, "reduce_scatter": reduce_scatter,
    "allgather": allgather, "gather": moves.gather, "scatter": moves.scatter, "alltoall": moves.alltoall,
    "barrier": moves.barrier,
}  # fmt: skip


# ---------------------------------------------------------------- chosen numbers
def cancellation(comm: collectives.Communicator, report: Report, some: Some) -> None:
    """Large numbers that cancel leave small ones, whose bits tell in which order they were added."""
    for one, other in combinations(range(comm.size), 2):
        mine = {one: 1e6, other: -1e6}.get(comm.rank, 1e-2)
        for algorithm in some:
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


def accuracy(comm: collectives.Communicator, report: Report, some: Some) -> None:
    """One large term and small ones, which a sum rounded at each step would lose; each rank holds the large one."""
    for holder in range(comm.size):
        for dtype, large in (("bfloat16", 256), ("float16", 2048)):
            mine = large if comm.rank == holder else 1
            wanted = torch.full((70,), large + comm.size - 1.0).to(torch_dtype(dtype))
            for algorithm in some:
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


def averages(comm: collectives.Communicator, report: Report, some: Some) -> None:
    """Neither overflow, as when dividing last, nor underflow, as when dividing first."""
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        kind = torch_dtype(dtype)
        most, least = torch.finfo(kind).max, torch.tensor(1, dtype=bits(torch.zeros(1, dtype=kind)).dtype).view(kind)
        for value in (40000.0, most, float(least), -float(least), torch.inf):
            for algorithm in some:
                x = torch.full((37,), value, dtype=kind)
                comm.allreduce(x, op="avg", algorithm=algorithm.name)
                bound = abs(value) * 2.0 ** (-20 if dtype == "float32" else -49) if value == most else 0.0
                near = not bound or bool(((x.double() - value).abs() <= bound).all())
                report.check(near, f"average of {value} by {algorithm.name} {dtype}: {x[0]}")
                if not bound:
                    report.equal(x, torch.full_like(x, value), f"average of {value} by {algorithm.name} {dtype}")


def weights(comm: collectives.Communicator, report: Report, some: Some) -> None:
    """A dry run, which many ranks make, finds the weights that a few find without one."""
    plans = comm._plans
    for algorithm in some:
        for segment in (None, 4096):
            call = plans.call("allreduce", "float32", 9, "avg", 0, algorithm.name, {"segment_bytes": segment})
            noted = plans._dry_run(call, plans._schedule(call))
            report.check(noted == plans._proved_weights(call), f"weights by {algorithm.name}, {segment}: {noted}")


def every_half(comm: collectives.Communicator, report: Report, some: Some) -> None:
    """All bit patterns, the other rank's reversed: exactly the sum in float32, rounded once."""
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    for dtype in HALVES:
        kind = torch_dtype(dtype)
        both = patterns.view(kind), patterns.flip(0).view(kind)
        wanted = (both[0].float() + both[1].float()).to(kind)
        wanted[wanted.isnan()] = torch.nan
        for algorithm in some:
            x = both[comm.rank].clone()
            comm.allreduce(x, algorithm=algorithm.name)
            report.equal(x, wanted, f"halves by {algorithm.name} {dtype}")


def main(seed: str, n: int, calls: int) -> None:
    report, random = Report(), Random(seed)
    with world.communicator(timeout=60) as comm:
        there = [a for a in every("allreduce") if not a.refusal(comm.size, a.groups(comm.topology))]
        some = random.sample(there, min(SOME, len(there)))
        for case in cases(random, comm.topology, n):
            RUNS[case.algorithm.collective](comm, case, report)
        report.time("product")
        moves.chosen(comm, report)
        report.time("moves")
        cancellation(comm, report, some)
        report.time("cancellation")
        fixed_order(comm, report, random)
        report.time("fixed order")
        accuracy(comm, report, some)
        report.time("accuracy")
        averages(comm, report, some)
        weights(comm, report, some)
        report.time("averages")
        if comm.size == 2:
            every_half(comm, report, some)
        traffic(comm, report, random, calls)
        topology = comm.topology
    report.finish(shape=topology.shape, links=topology.links)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
