"""gather, scatter, alltoall and barrier on real ranks, for contract.py: drawn cases, and what is refused."""

import time
from collections.abc import Callable
from random import Random
from typing import Any

import torch

import collectives
from collectives.algorithms import every
from collectives.errors import UnsupportedError
from tests.programs import world
from tests.programs.drawn import Case, run
from tests.programs.engine_numbers import Guarded, noise, torch_dtype
from tests.programs.engine_report import Report


def gather(comm: collectives.Communicator, case: Case, report: Report) -> None:
    wanted = noise(case.dtype, case.count, torch.Generator().manual_seed(case.seed))
    part, at_root = collectives.chunk(case.count, comm.size, comm.rank), comm.rank == case.root
    out = Guarded(torch.zeros_like(wanted), case.seed % 3)
    x = wanted[part].clone()
    if case.way == "in place" and at_root:
        out.x[part] = x
        x = out.x[part]
    even = case.count % comm.size == 0
    passed = None if case.way == "planned" or not at_root else out.x
    got = run(comm, "gather", case, x, passed, case.root, **({} if even else {"count": case.count}))
    if at_root:
        report.equal(got, wanted, case)
        report.check(passed is None or got is passed, f"{case}: returns another tensor")
    else:
        report.check(got is None and not out.x.any(), f"{case}: something is given to another rank than root")
    report.equal(x, wanted[part], f"{case}: the input")
    report.check(out.intact(), f"{case}: wrote beside the message")


def scatter(comm: collectives.Communicator, case: Case, report: Report) -> None:
    whole = noise(case.dtype, case.count, torch.Generator().manual_seed(case.seed))
    part, at_root = collectives.chunk(case.count, comm.size, comm.rank), comm.rank == case.root
    x = Guarded(whole, case.seed % 3) if at_root else None
    out = Guarded(torch.zeros_like(whole[part]), case.seed % 3)
    passed: Any = out.x
    if x is not None and case.way in ("in place", "planned"):
        passed = x.x[part] if case.way == "in place" else None
    even = case.count % comm.size == 0
    got = run(comm, "scatter", case, x.x if x else None, passed, case.root, **({} if even else {"count": case.count}))
    report.equal(got, whole[part], case)
    report.check(out.intact(), f"{case}: wrote beside the chunk")
    if x is not None:
        report.equal(x.x, whole, f"{case}: the input")
        report.check(x.intact(), f"{case}: wrote beside the message")


def alltoall(comm: collectives.Communicator, case: Case, report: Report) -> None:
    """With counts in half of the cases in which the algorithm takes them, zeros among them."""
    random, p, me = Random(case.seed), comm.size, comm.rank
    each = [[len(range(*collectives.chunk(case.count, p, to).indices(case.count))) for to in range(p)]] * p
    counted = random.random() < 0.5 and not case.algorithm.forwards
    if counted:
        each = [[random.choice([0, 1, 7, case.count // p, case.count]) for _ in range(p)] for _ in range(p)]
    sent = [noise(case.dtype, sum(row), torch.Generator().manual_seed(case.seed + r)) for r, row in enumerate(each)]
    blocks = [x.split(row) for x, row in zip(sent, each, strict=True)]
    wanted = torch.cat([blocks[source][me] for source in range(p)])
    mine, out = Guarded(sent[me], case.seed % 3), Guarded(torch.zeros_like(wanted), 1)
    counts: dict[str, Any] = {"send_counts": each[me]} if counted else {}
    if counted and case.way != "out of place":
        counts["recv_counts"] = [row[me] for row in each]
    passed = None if case.way == "planned" else out.x
    got = run(comm, "alltoall", case, mine.x, passed, **counts)
    report.equal(got, wanted, f"{case} {counts}")
    report.equal(mine.x, sent[me], f"{case}: the input")
    report.check(mine.intact() and out.intact(), f"{case}: wrote beside the message")


def barrier(comm: collectives.Communicator, case: Case, report: Report) -> None:
    """Nobody goes on before the last has come."""
    late = case.seed % comm.size
    if comm.rank == late:
        time.sleep(0.02)
    came = time.monotonic_ns()
    if case.way == "without waiting":
        comm.barrier(blocking=False).wait()
    else:
        comm.barrier()
    left = time.monotonic_ns()
    report.check(left >= max(world.everyone(came)), f"{case}: a rank has left before the last came")


# ---------------------------------------------------------------- what is refused
def refused(report: Report, kind: type[BaseException], says: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever else it is, it is reported
        right = type(error) is kind and says in str(error)
        report.check(right, f"{type(error).__name__} {error}, where {kind.__name__} {says!r} was expected")
    else:
        report.check(False, f"nothing is raised, where {kind.__name__} {says!r} was expected")


def wrong_calls(comm: collectives.Communicator, report: Report) -> None:
    """Refused on all ranks before anything is sent; the communicator goes on working."""
    p, me = comm.size, comm.rank
    x, even = torch.zeros(3), torch.zeros(2 * p)
    root = f"root {p} is not one of {p} ranks"
    refused(report, ValueError, root, lambda: comm.gather(x, root=p))
    refused(report, ValueError, root, lambda: comm.scatter(x, root=p))
    refused(report, ValueError, f"rank {me}'s chunk of {9 * p} elements has 9", lambda: comm.gather(x, count=9 * p))
    refused(report, ValueError, f"it is {p} whole numbers", lambda: comm.alltoall(x, send_counts=[1] * (p + 1)))
    refused(report, ValueError, "send_counts is [-1", lambda: comm.alltoall(x, send_counts=[-1] * p))
    refused(report, ValueError, "recv_counts without send_counts", lambda: comm.alltoall(x, recv_counts=[1] * p))
    refused(report, ValueError, f"the sum of send_counts has {2 * p}", lambda: comm.alltoall(x, send_counts=[2] * p))
    more = torch.zeros(2 * p + 1)
    refused(report, ValueError, "what all ranks send to this one has", lambda: comm.alltoall(even, more))
    refused(report, ValueError, "out overlaps x", lambda: comm.alltoall(even, even))
    lack = "alltoall bruck needs messages of one length, since it passes on what others send, and so no send_counts"
    refused(report, UnsupportedError, lack, lambda: comm.alltoall(even, send_counts=[2] * p, algorithm="bruck"))
    if me:
        refused(report, ValueError, "scatter needs out", lambda: comm.scatter(None))
    comm.barrier()


def chosen(comm: collectives.Communicator, report: Report) -> None:
    """What chosen numbers show: halves, nothing at all, and blocks of every length."""
    wrong_calls(comm, report)
    p, me = comm.size, comm.rank
    for algorithm in (a for a in every("alltoall") if not a.forwards):
        sends = [(me + to) % 3 for to in range(p)]  # symmetric, with zeros
        x = torch.cat([torch.full((n,), 10.0 * me + to) for to, n in enumerate(sends)])
        got = comm.alltoall(x, send_counts=sends, algorithm=algorithm.name)
        wanted = torch.cat([torch.full((n,), 10.0 * source + me) for source, n in enumerate(sends)])
        report.equal(got, wanted, f"alltoall {algorithm.name} with counts {sends}")
    for dtype in ("bfloat16", "int8"):
        nothing = torch.zeros(0, dtype=torch_dtype(dtype))
        report.check(comm.alltoall(nothing).numel() == 0, "an alltoall of nothing")
        report.check(comm.alltoall(nothing, send_counts=[0] * p).numel() == 0, "an alltoall of counted nothing")
        got = comm.gather(nothing)
        report.check((got is None) == (me > 0), "a gather of nothing")
