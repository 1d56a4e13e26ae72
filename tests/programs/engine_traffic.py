"""Many calls on real ranks, for contract.py.

Back to back with a straggler, without waiting, on several communicators, in lists, by plans, and on nothing at all.
Every part must leave communicators that go on working.
"""

import time
from array import array
from collections.abc import Callable
from random import Random
from typing import Any

import torch

import collectives
from collectives.algorithms import names
from collectives.topology import NO_MPI
from tests.programs import world
from tests.programs.drawn import serving
from tests.programs.engine_numbers import digest, inputs, result, torch_dtype
from tests.programs.engine_report import Report


def filled(count: int, value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((count,), value, dtype=dtype)


def back_to_back(comm: collectives.Communicator, report: Report, random: Random, calls: int) -> None:
    """Random sizes and algorithms; now and then one rank is late. The whole result is looked at, ends and middle."""
    names = serving(comm, "allreduce")
    sizes = [random.choice([1, 2, 7, 63, 500, 4000, 20_000]) for _ in range(12)]
    ranks = comm.size * (comm.size + 1) / 2
    for i in range(calls):
        count, name, late = random.choice(sizes), random.choice(names), random.randrange(40 * comm.size)
        if late == comm.rank:
            time.sleep(random.random() * 0.003)
        else:
            random.random()
        x = filled(count, comm.rank + 1 + i % 7)
        if random.random() < 0.7:
            comm.allreduce(x)
        else:
            comm.allreduce(x, algorithm=name)
        wanted = ranks + comm.size * (i % 7)
        report.check(bool((x == wanted).all()), f"call {i} of {count} by {name}: {x.unique()}, not {wanted}")
        if random.random() < 0.05:
            root = random.randrange(comm.size)
            x = filled(count, i if comm.rank == root else -1)
            comm.broadcast(x, root=root)
            report.check(bool((x == i).all()), f"call {i}: broadcast from {root}: {x.unique()}")


def without_waiting(comm: collectives.Communicator, report: Report) -> None:
    """Works under way together, of one plan and of several, waited for in another order on each rank."""
    for sizes in ([100] * 6, [1, 50_000, 3, 200_000, 17], [5, 60_000, 0, 9]):
        xs = [filled(n, comm.rank + 1) for n in sizes]
        kept = filled(33, comm.rank)
        works: list[Any] = [comm.allreduce(x, blocking=False) for x in xs]
        works += [comm.barrier(blocking=False), comm.broadcast(kept, root=comm.size - 1, blocking=False)]
        report.check(all(isinstance(work.done(), bool) for work in works), "done() is no answer")
        order = Random(comm.rank).sample(range(len(works)), len(works))
        for i in order[:2]:
            works[i].wait()
        x = filled(64, 2)
        comm.allreduce(x)  # behind them
        report.check(bool((x == 2 * comm.size).all()), "a blocking call behind others")
        for i in order:
            works[i].wait()
            report.check(works[i].done(), "waited for, and not done")
        total = comm.size * (comm.size + 1) // 2
        report.check(all(bool((x == total).all()) for x in xs), f"works of {sizes}")
        report.check(bool((kept == comm.size - 1).all()), "a broadcast behind others")


def growing(report: Report) -> None:
    """A call under way keeps its scratch memory when another call needs more of it."""
    for name in ("ring", "halving_doubling"):
        comm = world.communicator(timeout=60)
        first = filled(60_000, comm.rank + 1)
        if comm.rank == 0:
            work = comm.allreduce(first, blocking=False, algorithm=name, segment_bytes=65536)
        larger = [filled(700_000, comm.rank, torch.float64) for _ in range(2)]
        if comm.rank > 0:
            time.sleep(0.2)  # rank 0 has posted its receives, and makes the larger plan
            work = comm.allreduce(first, blocking=False, algorithm=name, segment_bytes=65536)
        works = [comm.allreduce(x, blocking=False, algorithm=name, segment_bytes=1 << 20, slots=4) for x in larger]
        for each in (work, *works):
            each.wait()
        total = comm.size * (comm.size + 1) // 2
        report.check(bool((first == total).all()), f"{name}: a work whose scratch memory has moved")
        report.check(all(bool((x == total - comm.size).all()) for x in larger), f"{name}: larger works")
        comm.close()


def meanwhile(comm: collectives.Communicator, report: Report) -> None:
    """A call under way goes on while its rank waits for others in the MPI library, or in the store."""

    def split() -> None:
        part = comm.split(0)
        assert part is not None
        part.close()

    acts: dict[str, Callable[[], object]] = {
        "split": split,
        "another communicator": lambda: world.communicator(timeout=60).close(),
    }
    if comm.topology.mpi != NO_MPI:
        acts["the library's own"] = lambda: comm.allreduce(filled(3, 1), native=True)
    for name, act in acts.items():
        x = filled(100_000, 1)
        if comm.rank == 0:
            work = comm.allreduce(x, blocking=False)
            act()
            work.wait()
        else:
            time.sleep(0.02)
            comm.allreduce(x)
            act()
        report.check(bool((x == comm.size).all()), f"a work under way during {name}: {x.unique()}")


def far_ahead(comm: collectives.Communicator, report: Report) -> None:
    """A root that waits for nobody, and hundreds of works at once."""
    for i in range(150):
        x = filled(20, i if comm.rank == 0 else -1)
        comm.broadcast(x)
        if comm.rank and i % 50 == 0:
            time.sleep(0.01)
        report.check(bool((x == i).all()), f"broadcast {i} behind a root far ahead: {x.unique()}")
    xs = [filled(30, i) for i in range(300)]
    for work in [comm.allreduce(x, blocking=False) for x in xs]:
        work.wait()
    report.check(all(bool((x == i * comm.size).all()) for i, x in enumerate(xs)), "300 works at once")


def several_communicators(comm: collectives.Communicator, report: Report) -> None:
    """Three at once; works begun in another order on each rank; then groups."""
    others = [world.communicator(timeout=60), world.communicator(timeout=60), comm]
    for size in (3, 30_000):
        xs = [filled(size, comm.rank + 10 * i) for i in range(3)]
        order = Random(comm.rank).sample(range(3), 3)
        works = {i: others[i].allreduce(xs[i], blocking=False) for i in order}
        for i in reversed(order):
            works[i].wait()
        ranks = comm.size * (comm.size - 1) // 2
        for i, x in enumerate(xs):
            report.check(bool((x == ranks + 10 * i * comm.size).all()), f"communicator {i}: {x.unique()}")
    order = Random(comm.rank + 1).sample(range(3), 3)
    means = {i: filled(900, comm.rank + i) for i in order}
    works = {i: others[i].allreduce(means[i], op="avg", algorithm="ring", blocking=False) for i in order}
    for i in order:
        works[i].wait()
        wanted = i + (comm.size - 1) / 2
        report.check(bool((means[i] == wanted).all()), f"means on communicator {i}: {means[i].unique()}, not {wanted}")
    for i, x in enumerate(filled(5, comm.rank) for _ in others):  # and in one order, each waiting for itself
        others[i].allreduce(x)
        report.check(bool((x == comm.size * (comm.size - 1) // 2).all()), "one after the other")
    for other in others[:2]:
        other.close()
        other.close()


def reopened(report: Report) -> None:
    """What ranks of one communicator have told each other while one was late means nothing to the next one."""
    for late in range(2):
        with world.communicator(timeout=60) as comm:
            if comm.rank % 2 == late:
                time.sleep(0.4)
            x = filled(5 + late, 1)
            comm.allreduce(x)
            report.check(bool((x == comm.size).all()), "after a late rank")


def groups(comm: collectives.Communicator, report: Report) -> None:
    """Roots are a group's own ranks; a rank may be in no group; a group may have one rank."""
    group = comm.split(comm.rank % 2, key=-comm.rank)
    assert group is not None
    members = sorted((r for r in range(comm.size) if r % 2 == comm.rank % 2), reverse=True)
    report.check(group.size == len(members) and members[group.rank] == comm.rank, "the order of a group")
    for root in range(group.size):
        x = filled(9, comm.rank)
        group.broadcast(x, root=root)
        report.check(bool((x == members[root]).all()), f"root {root} of the group {members}: {x}")
        x = filled(9, comm.rank)
        group.reduce(x, root=root)
        report.check(bool((x == (sum(members) if group.rank == root else comm.rank)).all()), f"reduce to {root}: {x}")
    try:
        group.broadcast(filled(1, 0), root=group.size)
    except ValueError as error:
        report.check(f"root {group.size} is not one of {group.size} ranks" in str(error), error)
    else:
        report.check(False, "a root outside the group is accepted")
    alone = comm.split(None if comm.rank else 0)
    report.check((alone is None) == (comm.rank > 0), "a rank without a color is in a group")
    if alone is not None:
        x = filled(9, 5)
        alone.allreduce(x, op="avg")
        report.check(bool((x == 5).all()) and alone.size == 1, "a group of one")
        alone.close()
    group.close()


def lists(comm: collectives.Communicator, report: Report, random: Random) -> None:
    """Several dtypes, layouts and kinds of memory in one call, with and without waiting."""
    for blocking in (True, False):
        made, wanted = [], []
        for dtype in ("float32", "int64", "bfloat16", "float32", "uint8"):
            for count in (0, 5, 257):
                given = inputs(dtype, "sum", comm.size, count, random.randrange(1 << 30))
                wanted.append(result(dtype, "sum", given))
                made.append(given[comm.rank])
        wide = torch.zeros(5, 3)
        wide[:, 1] = comm.rank
        plain, single = array("f", [comm.rank] * 4), torch.tensor(float(comm.rank))
        xs = [*made, wide[:, 1], plain, single]
        got = comm.allreduce(xs, blocking=blocking)
        got = got if blocking else got.wait()
        report.check(got is xs, "a list gives another list back")
        for x, there in zip(made, wanted, strict=True):
            report.equal(x, there, f"a list with {x.dtype}")
        total = comm.size * (comm.size - 1) / 2
        report.check(bool((wide[:, 1] == total).all()) and not wide[:, ::2].any(), "a list with a column")
        report.check(list(plain) == [total] * 4 and single.item() == total, "a list with an array and a number")
    report.check(comm.allreduce([]) == [], "an empty list")


def plans(comm: collectives.Communicator, report: Report) -> None:
    """Made once and run often, also beside each other."""
    x, y, out = filled(1000, 0), filled(70_000, 0), filled(1000, 0)
    mine = torch.empty(len(range(*collectives.chunk(1000, comm.size, comm.rank).indices(1000))))
    add, add_more = comm.plan("allreduce", x), comm.plan("allreduce", y, algorithm="ring", segment_bytes=16384)
    most, mean = comm.plan("allreduce", x, out, "max"), comm.plan("allreduce", x, op="avg")
    part, whole = comm.plan("reduce_scatter", x, mine), comm.plan("allgather", mine, out)
    for i in range(20):
        x.fill_(comm.rank + i)
        y.fill_(comm.rank)
        report.check(most() is out and bool((out == comm.size - 1 + i).all()), "a plan of max")
        part(), whole()
        total = comm.size * i + comm.size * (comm.size - 1) // 2
        report.check(bool((out == total).all()), "plans of reduce_scatter and allgather")
        report.check(add() is x and bool((x == total).all()), "a plan of a sum")
        add_more()
        report.check(bool((y == comm.size * (comm.size - 1) // 2).all()), "a plan in a pipeline")
        mean()
        report.check(bool((x == total).all()), "a plan of a mean")
    report.check(add.choice.algorithm in names("allreduce"), add.choice)


def nothing(comm: collectives.Communicator, report: Report) -> None:
    """Empty messages, and fewer elements than ranks."""
    for dtype in ("float32", "bfloat16", "int8"):
        for count in (0, 1, comm.size - 1):
            for shape in ((count,), (1, count, 2)):
                for name in serving(comm, "allreduce"):
                    x = torch.ones(shape, dtype=torch_dtype(dtype))
                    comm.allreduce(x, algorithm=name)
                    report.check(bool((x == comm.size).all()) and x.shape == shape, f"{name} of {shape}: {x}")
                x = torch.ones(shape, dtype=torch_dtype(dtype))
                comm.allreduce(x, op="max", out=torch.empty(shape, dtype=x.dtype))
                comm.broadcast(x, root=comm.size - 1)
                comm.reduce(x)
                report.check(bool((x == (1 if comm.rank else comm.size)).all()), f"reduce of {shape}: {x}")
                part = comm.reduce_scatter(torch.ones(shape, dtype=x.dtype))
                n = collectives.chunk(x.numel(), comm.size, comm.rank)
                report.check(part.numel() == n.stop - n.start and bool((part == comm.size).all()), "reduce_scatter")
                whole = comm.allgather(part, out=torch.empty(x.numel(), dtype=x.dtype))
                report.check(bool((whole == comm.size).all()), "allgather")
    comm.barrier()


def traffic(comm: collectives.Communicator, report: Report, random: Random, calls: int) -> None:
    """All of it; `calls` back to back."""
    back_to_back(comm, report, random, calls)
    report.time("back to back")
    without_waiting(comm, report)
    growing(report)
    meanwhile(comm, report)
    far_ahead(comm, report)
    report.time("without waiting")
    several_communicators(comm, report)
    reopened(report)
    groups(comm, report)
    report.time("communicators")
    lists(comm, report, random)
    plans(comm, report)
    nothing(comm, report)
    report.time("lists, plans, nothing")
    x = torch.arange(100.0) * (comm.rank + 1)
    comm.allreduce(x)
    report.agree("the end", digest(x))
