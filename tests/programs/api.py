"""The public surface as a hostile user meets it, on any number of ranks: python -m tests.programs.api.

What is refused is refused on all ranks alike, before anything is sent: the communicator goes on working.
"""

import ctypes
import gc
import os
import sys
import threading
from array import array
from collections.abc import Callable
from typing import Any

import torch
from mpi4py import MPI

import collectives
from collectives.errors import UnsupportedError
from tests.programs.engine_report import Report


class Dlpack:
    """A producer of DLPack and nothing else."""

    def __init__(self, x: torch.Tensor):
        self.x = x

    def __dlpack__(self, **_: Any) -> Any:
        return self.x.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def ranks_sum(comm: collectives.Communicator) -> int:
    return comm.size * (comm.size - 1) // 2


def refused(report: Report, kind: type[BaseException], says: str, call: Callable[[], Any]) -> None:
    """The call must raise just this, with these words."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever else it is, it is reported
        right = type(error) is kind and says in str(error)
        report.check(right, f"{type(error).__name__} {error}, where {kind.__name__} {says!r} was expected")
    else:
        report.check(False, f"nothing is raised, where {kind.__name__} {says!r} was expected")


# ---------------------------------------------------------------- memory
def tensors(comm: collectives.Communicator, report: Report) -> None:
    """Every layout, in place, out of place and without waiting: the caller's own tensor changes."""
    makers: dict[str, Callable[[], torch.Tensor]] = {
        "plain": lambda: torch.zeros(3, 4),
        "0-d": lambda: torch.zeros(()),
        "column": lambda: torch.zeros(4, 5)[:, 0],
        "every second": lambda: torch.zeros(9)[::2],
        "transposed": lambda: torch.zeros(3, 4).t(),
        "channels last": lambda: torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "leaf": lambda: torch.zeros(3, requires_grad=True),
        "leaf, transposed": lambda: torch.zeros(3, 4, requires_grad=True).detach().requires_grad_().t(),
        "parameter": lambda: torch.nn.Parameter(torch.zeros(3)),
        "imaginary": lambda: torch.zeros(3, dtype=torch.complex64).imag,
        "conjugate's imaginary": lambda: torch.zeros(3, dtype=torch.complex64).conj().imag,
        "(1, 2, 2)": lambda: torch.zeros(1, 2, 2),
    }
    for name, make in makers.items():
        for way in ("in place", "in place", "out of place", "without waiting", "both strided"):
            x = make()
            with torch.no_grad():
                x.copy_(torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape) + comm.rank)
            before = x.detach().clone()
            out = x if way.startswith(("in", "without")) else make()
            if way == "out of place":
                out = torch.zeros(x.shape)
            if way == "without waiting":
                comm.allreduce(x, blocking=False).wait()
            else:
                got = comm.allreduce(x) if out is x else comm.allreduce(x, out=out)
                report.check(got is out, f"{name} {way}: another tensor is returned")
            wanted = torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape) * comm.size + ranks_sum(comm)
            report.check(torch.equal(out.detach(), wanted), f"{name} {way}: {out}, not {wanted}")
            report.check(out is x or torch.equal(x.detach(), before), f"{name} {way}: the input changes")
    for _ in range(2):  # the second time its kind is known, and its sign still counts
        x = torch.tensor([1 + 2j]).conj().imag
        comm.allreduce(x)
        report.check(x.item() == -2 * comm.size, f"the imaginary part of one conjugate: {x}")
        plain = torch.ones(1)
        comm.allreduce(plain)
        report.check(plain.item() == comm.size, "one number")
    three = torch.tensor(3.0)
    report.check(comm.allreduce(three) is three and three.item() == 3 * comm.size, f"tensor(3.): {three}")


def every_collective_on_strided_memory(comm: collectives.Communicator, report: Report) -> None:
    n = 2 * comm.size + 1
    part = collectives.chunk(n, comm.size, comm.rank)
    wide = torch.full((n, 2), float(comm.rank))
    mine = comm.reduce_scatter(wide[:, 1])
    report.check(bool((mine == ranks_sum(comm)).all()) and mine.numel() == part.stop - part.start, f"scatter: {mine}")
    out = torch.zeros(n, 2)
    comm.allgather(mine, out=out[:, 0])
    report.check(bool((out[:, 0] == ranks_sum(comm)).all()) and not out[:, 1].any(), f"gather: {out}")
    chunk = torch.zeros(part.stop - part.start, 2)
    comm.reduce_scatter(wide[:, 0], out=chunk[:, 1])
    report.check(bool((chunk[:, 1] == ranks_sum(comm)).all()) and not chunk[:, 0].any(), f"scatter: {chunk}")
    x = torch.full((n, 2), float(comm.rank))
    comm.broadcast(x[:, 1], root=comm.size - 1)
    report.check(bool((x[:, 1] == comm.size - 1).all()) and bool((x[:, 0] == comm.rank).all()), f"broadcast: {x}")
    x = torch.full((n, 2), float(comm.rank))
    comm.reduce(x[:, 1], root=0)
    wanted = ranks_sum(comm) if comm.rank == 0 else comm.rank
    report.check(bool((x[:, 1] == wanted).all()) and bool((x[:, 0] == comm.rank).all()), f"reduce: {x}")


def buffers(comm: collectives.Communicator, report: Report) -> None:
    """Whatever shares memory, in place and as input of something else."""
    odd = bytearray(9)
    kinds: dict[str, Callable[[], Any]] = {
        "array": lambda: array("f", [0, 0]),
        "memoryview": lambda: memoryview(array("f", [0, 0])),
        "unaligned memoryview": lambda: memoryview(odd)[1:9].cast("f"),
        "two-dimensional": lambda: memoryview(bytearray(8)).cast("f", [1, 2]),
        "ctypes": lambda: (ctypes.c_float * 2)(),
        "DLPack": lambda: Dlpack(torch.zeros(1, 2, 1)),
    }
    for name, make in kinds.items():
        x = make()
        values = floats(x)
        values[0], values[1] = comm.rank, 1
        out = array("f", [0, 0])
        report.check(comm.allreduce(x, out=out) is out, f"{name}: out of place returns another object")
        report.check(list(out) == [ranks_sum(comm), comm.size], f"{name} out of place: {list(out)}")
        report.check(list(values) == [comm.rank, 1], f"{name}: the input changes")
        report.check(comm.allreduce(x) is x, f"{name}: another object is returned")
        report.check(list(values) == [ranks_sum(comm), comm.size], f"{name} in place: {list(values)}")
    data = bytearray([1, 2, 250])
    comm.allreduce(data, op="max")
    report.check(data == bytearray([1, 2, 250]), f"bytearray: {data}")
    constant = bytes([comm.rank + 1, 7])
    target = bytearray(2)
    comm.allreduce(constant, out=target)
    report.check(list(target) == [comm.size * (comm.size + 1) // 2, 7 * comm.size], f"bytes as input: {target}")
    x = constant if comm.rank else bytearray(constant)
    comm.reduce(x, root=0)  # others' memory is only read
    report.check(list(x) == (list(target) if comm.rank == 0 else list(constant)), "reduce of bytes")
    bf = torch.full((3,), 1.5, dtype=torch.bfloat16)
    comm.allreduce(Dlpack(bf))
    report.check(bool((bf == 1.5 * comm.size).all()), f"bfloat16 by DLPack: {bf}")
    for dtype in (torch.uint16, torch.uint32, torch.uint64):
        x = torch.tensor([1, 2], dtype=dtype)
        comm.allreduce(x)
        report.check(x.tolist() == [comm.size, 2 * comm.size], f"{dtype}: {x}")


def floats(x: Any) -> Any:
    """The numbers of two floats' memory, to read and write."""
    if isinstance(x, Dlpack):
        return (ctypes.c_float * 2).from_address(x.x.data_ptr())
    return (ctypes.c_float * 2).from_buffer(x)


def lives(comm: collectives.Communicator, report: Report) -> None:
    """Memory of a call under way, or of a plan, stays where it is, whoever lets go of it."""
    works = [comm.allreduce(torch.full((20_000,), float(i)), blocking=False) for i in range(4)]
    growing = bytearray(4000)
    held = comm.allreduce(growing, blocking=False)
    comm.allreduce(torch.ones(5), blocking=False)  # nobody waits for it
    gc.collect()
    torch.full((20_000,), -1.0)
    refused(report, BufferError, "", lambda: growing.append(1) if not held.ended else raise_buffer_error())
    results = [work.wait() for work in works]
    report.check(all(bool((x == i * comm.size).all()) for i, x in enumerate(results)), "works on temporaries")
    report.check(works[0].wait() is results[0] and works[0].done(), "waited for twice")
    held.wait()
    growing.append(1)  # and now it may move
    plan = comm.plan("allreduce", torch.ones(7))
    gc.collect()
    torch.zeros(7)
    report.check(plan().tolist() == [comm.size] * 7, "a plan on a temporary")


def raise_buffer_error() -> None:
    raise BufferError  # it was already done


# ---------------------------------------------------------------- what is refused
def wrong_memory(comm: collectives.Communicator, report: Report) -> None:
    x, n = torch.ones(6), comm.size
    part = collectives.chunk(6, n, comm.rank)
    chunk = part.stop - part.start
    ro, few = memoryview(b"abcd"), torch.ones(5)
    for kind, says, call in (
        (BufferError, "x is read-only, and would be written; pass a writable", lambda: comm.allreduce(ro)),
        (BufferError, "out is read-only", lambda: comm.allreduce(bytearray(4), out=ro)),
        (BufferError, "x[1] is read-only", lambda: comm.allreduce([bytearray(4), ro])),
        (ValueError, "pass x.contiguous()", lambda: comm.allreduce(torch.ones(1).expand(4))),
        (ValueError, "x[0] is an expanded tensor", lambda: comm.allreduce([torch.ones(1).expand(4)])),
        (ValueError, "out overlaps x; pass memory of its own", lambda: comm.allreduce(x[:4], out=x[1:5])),
        (ValueError, "out overlaps x", lambda: comm.reduce_scatter(x, out=x[:chunk])),
        (ValueError, "out overlaps x", lambda: comm.allgather(x[1 : 1 + chunk], out=x) if n > 1 else overlap()),
        (ValueError, "out has 5 elements, and x has 6; pass as many", lambda: comm.allreduce(x, out=few)),
        (TypeError, "out has dtype float64, and x has float32; pass", lambda: comm.allreduce(x, out=x.double())),
        (ValueError, "x has 9 elements, and rank", lambda: comm.allgather(torch.ones(9), out=torch.ones(6))),
        (ValueError, f"out has 9 elements, and rank {comm.rank}'s chunk of 6 elements has {chunk}",
         lambda: comm.reduce_scatter(x, out=torch.ones(9))),
        (ValueError, "a list is reduced in place; out= is for single arrays", lambda: comm.allreduce([x], out=x)),
        (TypeError, "x[1] is a float", lambda: comm.allreduce([x, 1.0])),
        (TypeError, "x is a NoneType", lambda: comm.allreduce(None)),
        (TypeError, "sparse_coo tensor; pass a dense one", lambda: comm.allreduce(x.to_sparse())),
        (TypeError, "sparse_coo tensor; pass a dense one", lambda: comm.allreduce([x.to_sparse()])),
        (UnsupportedError, "x is on meta", lambda: comm.allreduce(torch.ones(6, device="meta"))),
        (TypeError, "float8_e4m3fn, which is not reduced", lambda: comm.allreduce(x.to(torch.float8_e4m3fn))),
        (TypeError, "torch.bool", lambda: comm.allreduce(x > 0)),
        (TypeError, "view_as_real", lambda: comm.allreduce(x * 1j)),
    ):  # fmt: skip
        refused(report, kind, says, call)
    report.check(bool((x == 1).all()), "refused, and changed")


def overlap() -> None:
    raise ValueError("out overlaps x")  # on one rank it would be in place


def wrong_words(comm: collectives.Communicator, report: Report) -> None:
    x, whole = torch.ones(6), torch.ones(6, dtype=torch.int32)
    halves = torch.ones(6, dtype=torch.float16)
    untyped: Any = comm
    comm.allreduce(x, op="max")
    for kind, says, call in (
        (TypeError, "op 'avg' is not for int32 (sum and divide yourself", lambda: comm.allreduce(whole, op="avg")),
        (TypeError, "op 'xor' is not for float32 (bits are those of", lambda: comm.allreduce(x, op="xor")),
        (TypeError, "op 'mean' does not exist; for float32 there are sum, avg", lambda: comm.allreduce(x, op="mean")),
        (TypeError, "does not exist", lambda: untyped.allreduce(x, op=None)),
        (TypeError, "does not exist", lambda: untyped.reduce(x, op=torch.distributed.ReduceOp.SUM)),
        (TypeError, "op 'and' is not for", lambda: comm.reduce_scatter(x, op="and")),
        (ValueError, "no algorithm called 'rong'; it has: ring,", lambda: comm.allreduce(x, algorithm="rong")),
        (ValueError, "broadcast has no algorithm called 'ring'", lambda: comm.broadcast(x, algorithm="ring")),
        (UnsupportedError, "asked for by native=True", lambda: comm.allreduce(x, algorithm="native")),
        (ValueError, "has no parameter 'segments'; it has: segment_bytes, slots",
         lambda: comm.allreduce(x, algorithm="ring", segments=4)),
        (ValueError, "segment_bytes=0 is not allowed", lambda: comm.allreduce(x, algorithm="ring", segment_bytes=0)),
        (ValueError, "segment_bytes='4K' is not", lambda: comm.allreduce(x, algorithm="ring", segment_bytes="4K")),
        (ValueError, "slots=True is not allowed", lambda: comm.allreduce(x, algorithm="ring", slots=True)),
        (ValueError, "leaders='two' is not", lambda: comm.allreduce(x, algorithm="hierarchical", leaders="two")),
        (ValueError, "order='any'; it is None or 'fixed'", lambda: comm.allreduce(x, order="any")),
        (ValueError, "precision='high'; it is None, 'fast' or 'accurate'", lambda: comm.allreduce(x, precision="high")),
        (UnsupportedError, "folds ranks in no fixed order", lambda: comm.allreduce(x, order="fixed", algorithm="ring")),
        (UnsupportedError, "served by: direct, two_shot, one_pass",
         lambda: comm.reduce(x, order="fixed", algorithm="binomial_tree")),
        (UnsupportedError, "reduce_scatter ring rounds float16 more than once",
         lambda: comm.reduce_scatter(halves, algorithm="ring", precision="accurate")),
        (ValueError, f"root {comm.size} is not one of {comm.size} ranks", lambda: comm.broadcast(x, root=comm.size)),
        (ValueError, "root -1 is not one of", lambda: comm.reduce(x, root=-1)),
        (TypeError, "cannot be interpreted as an integer", lambda: untyped.broadcast(x, root=0.0)),
        (ValueError, "timeout is 'soon'; it is a number of seconds", lambda: untyped.allreduce(x, timeout="soon")),
        (ValueError, "timeout is 0.0; it is a number of seconds above 0", lambda: comm.barrier(timeout=0)),
        (ValueError, "timeout is inf", lambda: comm.allreduce(x, timeout=float("inf"), blocking=False)),
        (UnsupportedError, "native=True blocks", lambda: comm.allreduce(x, native=True, blocking=False)),
        (UnsupportedError, "MPI libraries do not reduce float16", lambda: comm.allreduce(halves, native=True)),
        (UnsupportedError, "MPI libraries have no op 'avg'", lambda: comm.allreduce(x, op="avg", native=True)),
        (ValueError, "'sort' cannot be planned; there are allreduce,", lambda: comm.plan("sort", x)),
        (UnsupportedError, "works on contiguous memory as it is", lambda: comm.plan("allreduce", x[::2])),
        (UnsupportedError, "comm.allreduce",
         lambda: comm.plan("allreduce", halves, algorithm="ring", precision="accurate")),
        (UnsupportedError, "a list is served by comm.allreduce", lambda: comm.plan("allreduce", [x])),
        (TypeError, "takes x, out, op and keywords", lambda: comm.plan("allreduce", x, None, "max", "ring")),
        (TypeError, "each once", lambda: comm.plan("allreduce", x, None, "max", op="sum")),
        (ValueError, "has no parameter 'bogus'", lambda: comm.plan("broadcast", x, bogus=1)),
        (ValueError, "dtype 'float' does not exist; there are float16", lambda: comm.explain(dtype="float")),
        (ValueError, "no collective is called 'allredcue'", lambda: comm.explain("allredcue")),
        (ValueError, "nbytes is -1", lambda: comm.explain(nbytes=-1)),
        (TypeError, "op 'mean' does not exist", lambda: comm.explain(op="mean")),
        (TypeError, "op 'avg' is not for int32", lambda: comm.explain(dtype="int32", op="avg")),
        (ValueError, "rank 3 is not one of 2 ranks, 0 to 1", lambda: collectives.chunk(5, 2, 3)),
    ):  # fmt: skip
        refused(report, kind, says, call)
        y = torch.ones(4)
        comm.allreduce(y)
        report.check(bool((y == comm.size).all()), f"after {says!r}: {y}")
    report.check(bool((x == 1).all()), "refused, and changed")


# ---------------------------------------------------------------- choosing
def choosing(comm: collectives.Communicator, report: Report) -> None:
    """What explain says is what runs, and last_choice says what ran."""
    fresh = collectives.Communicator(timeout=60)
    report.check(collectives.last_choice(fresh) is None, "a choice before the first call")
    for count in (1, 3000, 600_000):
        for order in (None, "fixed"):
            said = fresh.explain("allreduce", nbytes=4 * count, dtype="float32", order=order)
            fresh.allreduce(torch.ones(count), order=order)
            ran = collectives.last_choice(fresh)
            report.check(ran == said and said.reason != "", f"{count}: explained {said}, ran {ran}")
    fresh.allreduce(torch.ones(3), algorithm="ring", slots=3)
    ran = collectives.last_choice(fresh)
    assert ran is not None
    report.check((ran.algorithm, dict(ran.params), ran.origin) == ("ring", {"slots": 3}, "argument"), ran)
    fresh.allreduce(torch.ones(3), native=True)
    ran = collectives.last_choice(fresh)
    report.check(ran is not None and ran.algorithm == "native", f"after native=True: {ran}")
    fresh.broadcast(torch.ones(3))
    ran = collectives.last_choice(fresh)
    report.check(ran is not None and ran.algorithm == "direct", ran)
    fresh.close()


def environment(comm: collectives.Communicator, report: Report) -> None:
    """TREERING_ALGORITHM, TREERING_TIMEOUT, and a TREERING_TABLE for this very topology."""
    from collectives.tables.table import Place, Rule, Table

    here = comm.topology
    place = Place(nodes=len(here.nodes), ranks_per_node=list(here.ranks_per_node), fingerprint=here.fingerprint)
    rules = [
        Rule(collective="allreduce", min_bytes=0, max_bytes=999, algorithm="binomial_tree"),
        Rule(collective="allreduce", min_bytes=1000, max_bytes=None, algorithm="ring", params={"segment_bytes": 512}),
    ]
    path = f"{sys.argv[1]}/table.json"
    if comm.rank == 0:
        Table(treering="0", created="2026-01-01", topology=place, rules=rules).save(path)
    MPI.COMM_WORLD.Barrier()
    os.environ |= {"TREERING_TABLE": path, "TREERING_TIMEOUT": "55"}
    with collectives.Communicator() as tuned:
        for count, name in ((10, "binomial_tree"), (1000, "ring")):
            x = torch.ones(count)
            tuned.allreduce(x)
            ran = collectives.last_choice(tuned)
            report.check(bool((x == comm.size).all()), "by a table's rule")
            report.check(ran is not None and ran.algorithm == name and ran.origin == f"table {path}", ran)
            report.check(ran == tuned.explain(nbytes=4 * count) and ran.rule is not None, "explained otherwise")
        ran = tuned.explain(nbytes=4, order="fixed")
        served = ("binomial_tree",) if comm.size <= 3 else ("one_shot", "two_shot")  # three ranks it folds in order
        report.check("binomial_tree" in ran.reason + ran.algorithm and ran.algorithm in served, ran)
    os.environ["TREERING_ALGORITHM"] = "halving_doubling:segment_bytes=256"
    with collectives.Communicator() as fixed:
        x = torch.ones(500)
        fixed.allreduce(x)
        ran = collectives.last_choice(fixed)
        assert ran is not None
        report.check((ran.algorithm, dict(ran.params)) == ("halving_doubling", {"segment_bytes": 256}), ran)
        report.check(ran.origin == "environment" and "TREERING_ALGORITHM" in ran.reason, ran)
        fixed.allreduce(x, algorithm="one_shot")
        report.check(bool((x == comm.size**2).all()), "by the environment, then by the call")
    for name in ("TREERING_TABLE", "TREERING_TIMEOUT", "TREERING_ALGORITHM"):
        del os.environ[name]


# ---------------------------------------------------------------- threads
def threads(comm: collectives.Communicator, report: Report) -> None:
    """Two threads, each on a communicator of its own, each in its own time."""
    comms = [collectives.Communicator(timeout=60) for _ in range(2)]
    wrong: list[str] = []

    def work(mine: collectives.Communicator, number: int) -> None:
        for i in range(60):
            x = torch.full(((i * 37 % 900) + 1,), float(i + number))
            (mine.allreduce(x, blocking=False).wait() if i % 3 == number else mine.allreduce(x))
            if not bool((x == (i + number) * mine.size).all()):
                wrong.append(f"thread {number}, call {i}: {x.unique()}")
            if (i + number) % 7 == mine.rank:
                threading.Event().wait(0.001)

    running = [threading.Thread(target=work, args=(mine, number)) for number, mine in enumerate(comms)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    report.check(not wrong, wrong)
    for mine in comms:
        mine.close()


def main() -> None:
    report = Report()
    with collectives.Communicator(timeout=60) as comm:
        for part in (tensors, every_collective_on_strided_memory, buffers, lives, wrong_memory, wrong_words, choosing,
                     environment, threads):  # fmt: skip
            part(comm, report)
            report.time(part.__name__)
    report.finish()


if __name__ == "__main__":
    main()
