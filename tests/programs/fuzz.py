"""Calls of every kind, drawn by hypothesis, on every number of ranks:

    python -m tests.programs.fuzz --cases 10000 [--ranks 1-6] [--mpi mpich] [--seed 0]

Each number of ranks is one launch. The first rank draws a case, tells the others, and all run it: one to four calls on
three communicators, which each rank makes in an order of its own where none of them waits. Results are exact, so every
bit is compared, and what lies beside a message too. What fails is made small before it is shown.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SEGMENTS = (None, None, 8, 64, 200, 4096, 65536)
EDGES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 31, 32, 33, 127, 128, 129, 1009, 1024, 4095, 4096, 4099, 16_384, 20_011)
POOL_BYTES = 1 << 19  # of symmetric memory, on each communicator
COMMUNICATORS = 3
WAYS = ("in place", "out of place", "without waiting", "planned", "in a list")


@dataclass(frozen=True)
class Call:
    """One collective. `algorithm` None: whatever serves. `offset`: elements before the message in its memory."""

    comm: int
    collective: str
    algorithm: str | None
    params: dict[str, Any]
    dtype: str
    op: str
    count: int
    root: int
    precision: str | None
    order: str | None
    way: str
    layout: str
    offset: int
    symmetric: bool
    counted: bool  # an alltoall whose blocks have lengths of their own
    seed: int

    @property
    def how(self) -> dict[str, Any]:
        given = {"algorithm": self.algorithm, "precision": self.precision, "order": self.order}
        return {name: value for name, value in given.items() if value} | self.params


@dataclass
class Pool:
    """A communicator, and symmetric memory of it that calls take parts of, one after the other."""

    comm: Any
    memory: Any
    used: int = 0

    def take(self, n_bytes: int) -> Any:
        """A part that begins at a multiple of eight bytes; None where there is no more."""
        start = self.used
        if start + n_bytes > POOL_BYTES:
            return None
        self.used = (start + n_bytes + 7) // 8 * 8
        return self.memory[start : start + n_bytes]


@dataclass
class Given:
    """Memory of one message within more of it, which nobody may touch."""

    x: "torch.Tensor"  # as the call takes it
    whole: "torch.Tensor"
    before: "torch.Tensor" = field(init=False)

    def __post_init__(self) -> None:
        self.before = self.whole.clone()

    def intact(self) -> bool:
        """Whether all is as before but the message."""
        import torch

        from tests.programs.engine_numbers import bits

        now, then = self.whole.clone(), self.before.clone()
        for each in (now, then):
            view = each.as_strided(self.x.shape, self.x.stride(), self.x.storage_offset() - self.whole.storage_offset())
            view.zero_()
        return torch.equal(bits(now), bits(then))


def place(call: Call, values: "torch.Tensor", pool: Pool, rank: int) -> Given:
    """Memory with these values, laid out as the call wants it; ranks' offsets differ in symmetric memory."""
    import torch

    n, guard = values.numel(), 5
    stretch = 2 if call.layout == "strided" else 1
    offset = call.offset + (rank if call.symmetric else 0)
    length = offset + stretch * n + guard
    part = pool.take(length * values.element_size()) if call.symmetric else None
    whole = torch.empty(length, dtype=values.dtype) if part is None else part.view(values.dtype)
    whole.copy_(torch.arange(length).remainder(3).to(values.dtype))
    x = whole[offset : offset + stretch * n : stretch] if n else whole[offset:offset]
    if call.layout == "transposed" and n:
        width = next(w for w in (7, 5, 3, 2, 1) if n % w == 0)
        x = x.view(width, n // width).t()
        x.copy_(values.view(n // width, width))
    elif call.layout == "scalar" and n == 1:
        x = x.view(())
        x.copy_(values.view(()))
    else:
        x.copy_(values)
    return Given(x, whole)


class Made:
    """A call that one rank has begun."""

    def __init__(self, call: Call, pool: Pool, blocking: bool):
        import torch

        from collectives import chunk
        from collectives.dtypes import ITEMSIZE
        from tests.programs.engine_numbers import inputs, noise, result, torch_dtype

        comm = pool.comm
        self.source: Given | None = None
        self.out: Given | None = None
        if call.collective == "barrier":
            done = comm.barrier(blocking=blocking)
            self.work = None if blocking else done
            return
        self.call, rank, size, how = call, comm.rank, comm.size, call.how
        count = call.count if call.symmetric is False or call.count * ITEMSIZE[call.dtype] < POOL_BYTES // 24 else 33
        part, plain = chunk(count, size, rank), call.way == "in place"
        if call.collective in ("broadcast", "allgather", "gather", "scatter"):
            wanted = noise(call.dtype, count, torch.Generator().manual_seed(call.seed))
            mine = wanted[part] if call.collective in ("allgather", "gather") else wanted
            if call.collective in ("broadcast", "scatter") and rank != call.root:
                mine = torch.zeros_like(wanted)
        elif call.collective == "alltoall" and call.counted:
            lengths = block_lengths(call, size, count)
            blocks = [noise(call.dtype, sum(row), torch.Generator().manual_seed(call.seed + i)).split(row)
                      for i, row in enumerate(lengths)]  # fmt: skip
            mine, wanted = torch.cat(blocks[rank]), torch.cat([row[rank] for row in blocks])
            how = {**how, "send_counts": lengths[rank]}
        elif call.collective == "alltoall":
            everyone = [noise(call.dtype, count, torch.Generator().manual_seed(call.seed + i)) for i in range(size)]
            mine, wanted = everyone[rank], torch.cat([x[part] for x in everyone])
        else:
            given = inputs(call.dtype, call.op, size, count, call.seed)
            mine, wanted = given[rank], result(call.dtype, call.op, given)
        source = place(call, mine, pool, rank)
        out = None
        arguments: list[Any] = [source.x]
        match call.collective:
            case "allreduce":
                out = None if plain or call.way == "in a list" else place(call, torch.zeros_like(wanted), pool, rank)
                arguments += [out.x if out else None, call.op]
            case "reduce":
                out = None if plain or rank != call.root else place(call, torch.zeros_like(wanted), pool, rank)
                arguments += [call.root, out.x if out else None, call.op]
                wanted = wanted if rank == call.root else mine
            case "broadcast":
                arguments += [call.root]
            case "reduce_scatter":
                wanted = wanted[part]
                out = place(call, torch.zeros_like(wanted), pool, rank)
                arguments += [out.x, call.op]
            case "allgather" | "alltoall":
                out = place(call, torch.zeros(len(wanted), dtype=torch_dtype(call.dtype)), pool, rank)
                arguments += [out.x]
            case "gather":
                out = place(call, torch.zeros_like(wanted), pool, rank) if rank == call.root else None
                arguments += [out.x if out else None, call.root]
                wanted, how = wanted if out else mine, {**how, "count": count}
            case "scatter":
                wanted = wanted[part]
                out = place(call, torch.zeros_like(wanted), pool, rank)
                arguments += [out.x, call.root]
                how = {**how, "count": count}
        self.source, self.out, self.wanted, self.mine = source, out, wanted, mine
        method = getattr(comm, call.collective)
        if call.way == "in a list" and call.collective == "allreduce":
            done = comm.allreduce([source.x], op=call.op, blocking=blocking, **how)
        elif call.way == "planned" and blocking and self.contiguous and call.precision != "accurate":
            done = self.planned(comm, arguments, how)
        else:
            done = method(*arguments, blocking=blocking, **how)
        self.work = None if blocking else done

    @property
    def contiguous(self) -> bool:
        assert self.source is not None
        return self.source.x.is_contiguous() and (self.out is None or self.out.x.is_contiguous())

    def planned(self, comm: Any, arguments: list[Any], how: dict[str, Any]) -> Any:
        from collectives.errors import UnsupportedError

        try:
            plan = comm.plan(self.call.collective, *arguments, **how)
        except UnsupportedError:  # an input that must be copied
            return getattr(comm, self.call.collective)(*arguments, **how)
        return plan()

    def wrong(self) -> str:
        """What is not as it should be, once it is done."""
        from tests.programs.engine_numbers import differences

        if self.source is None:
            return ""
        target = self.out or self.source
        if said := differences(target.x.contiguous().view(-1), self.wanted.contiguous().view(-1)):
            return said
        if self.out is not None and (said := differences(self.source.x.contiguous().view(-1), self.mine)):
            return f"the input: {said}"
        if not self.source.intact() or not (self.out is None or self.out.intact()):
            return "wrote beside the message"
        return ""


def block_lengths(call: Call, size: int, count: int) -> list[list[int]]:
    """What each rank sends to each, about `count` elements in all, and to some of them nothing."""
    random = Random(call.seed)
    return [[random.randrange(1 + count // size) * random.randrange(2) for _ in range(size)] for _ in range(size)]


def run_case(calls: list[Call], pools: list[Pool], mixed: bool) -> list[str]:
    """What is wrong on this rank."""
    comm = pools[0].comm
    for pool in pools:
        pool.used = 0
    order = list(range(len(calls)))
    if mixed:  # those of one communicator stay in their order
        Random(comm.rank + len(calls)).shuffle(order)
        queues = {n: iter([i for i, call in enumerate(calls) if call.comm == n]) for n in range(COMMUNICATORS)}
        order = [next(queues[calls[i].comm]) for i in order]
    made: dict[int, Made] = {}
    for i in order:
        made[i] = Made(calls[i], pools[calls[i].comm], blocking=not mixed and calls[i].way != "without waiting")
    for i in sorted(made, key=lambda i: (i * 7 + comm.rank) % 5):
        work = made[i].work
        if work is not None:
            work.wait()
    return [f"rank {comm.rank}: call {i}: {said}" for i in order if (said := made[i].wrong())]


# ---------------------------------------------------------------- drawing
def calls_of(size: int, nodes: Any) -> Any:
    """The strategy of one call."""
    from hypothesis import strategies as some

    from collectives.algorithms import every
    from collectives.contract import ROOTED
    from tests.programs.engine_numbers import PAIRS

    algorithms = [a for a in every() if not a.refusal(size, nodes)]
    counts = some.one_of(some.sampled_from(EDGES), some.integers(0, 64), some.integers(0, 30_000))

    @some.composite
    def draw_call(draw: Any) -> Call:
        found = draw(some.sampled_from(algorithms))
        collective, count = found.collective, draw(counts)
        named, params = draw(some.booleans()), {}
        if named:
            params = {p.name: draw(some.sampled_from(p.choices)) for p in found.parameters}
            if found.pipelined:
                params["segment_bytes"] = draw(some.sampled_from(SEGMENTS))
                if params["segment_bytes"] and params["segment_bytes"] < 1000:
                    count = min(count, 1009)
        dtype, op = draw(some.sampled_from(PAIRS))
        reduces = collective == "allreduce"
        return Call(
            comm=draw(some.integers(0, COMMUNICATORS - 1)),
            collective=collective,
            algorithm=found.name if named else None,
            params=params,
            dtype=dtype,
            op=op,
            count=count,
            root=draw(some.integers(0, size - 1)) if collective in ROOTED else 0,
            precision=draw(some.sampled_from((None, "fast", "accurate"))) if reduces else None,
            order="fixed" if reduces and not named and draw(some.booleans()) else None,
            way=draw(some.sampled_from(WAYS)),
            layout=draw(some.sampled_from(("contiguous", "contiguous", "strided", "transposed", "scalar"))),
            offset=draw(some.integers(0, 9)),
            symmetric=draw(some.booleans()),
            counted=draw(some.booleans()) and not (named and found.refusal(size, nodes, True)),
            seed=draw(some.integers(0, 1 << 20)),
        )

    return draw_call()


class Ranks:
    """All ranks of a launch, which run what the first one draws."""

    def __init__(self) -> None:
        self.pools: list[Pool] = []
        self.ran = 0

    def open(self) -> None:
        """Communicators, of which the last has its ranks in reverse."""
        from tests.programs import world

        comms = [world.communicator(timeout=30) for _ in range(COMMUNICATORS - 1)]
        reverse = comms[0].split(0, key=-world.RANK)
        assert reverse is not None
        comms.append(reverse)
        self.pools = [Pool(comm, comm.empty(POOL_BYTES, dtype="uint8")) for comm in comms]

    def run(self, case: tuple[list[Call], bool] | None) -> tuple[bool, list[str]]:
        """What the first rank says is run on all; whether there was something, and what was wrong. Collective."""
        from collectives.errors import CollectiveError
        from tests.programs import world

        told = world.everyone(case)[0]
        if told is None:
            return False, []
        try:
            wrong = run_case(told[0], self.pools, told[1])
        except (CollectiveError, ValueError, TypeError, RuntimeError) as error:
            wrong = [f"rank {world.RANK}: {type(error).__name__}: {error}"]
        wrong = [said for each in world.everyone(wrong) for said in each]
        self.ran += 1
        if wrong:  # what is broken stays so
            self.open()
        return True, wrong


def one_launch(cases: int, seed: int) -> int:
    """A rank of a launch. The first prints what was found."""
    import hypothesis
    import torch
    from hypothesis import strategies as some

    from tests.programs import world

    torch.set_num_threads(1)
    ranks, failed, began = Ranks(), "", time.monotonic()
    ranks.open()
    if world.RANK:
        while ranks.run(None)[0]:
            pass
        world.everyone(None)
    else:
        nodes = ranks.pools[0].comm.topology.nodes

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=cases, database=None, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
        )
        @hypothesis.given(some.lists(calls_of(world.SIZE, nodes), min_size=1, max_size=4), some.booleans())
        def draw(calls: list[Call], mixed: bool) -> None:
            wrong = ranks.run((calls, mixed))[1]
            assert not wrong, "\n".join(wrong)

        try:
            draw()
        except AssertionError as error:
            failed = "\n".join([str(error), *getattr(error, "__notes__", [])])
        ranks.run(None)
        world.everyone(None)
        figures = {"ranks": world.SIZE, "cases": ranks.ran, "seconds": round(time.monotonic() - began, 1)}
        print(json.dumps({**figures, "wrong": failed}), flush=True)
    for pool in ranks.pools:
        pool.comm.close()
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="of all numbers of ranks together")
    parser.add_argument("--ranks", default="1-6", help="as 3 or 1-6")
    parser.add_argument("--mpi", default="mpich", help="an MPI library, or store")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return one_launch(options.cases, options.seed)
    from tests import launch

    first, _, last = options.ranks.partition("-")
    sizes, status = range(int(first), int(last or first) + 1), 0
    for size in sizes:
        share = -(-options.cases // len(sizes))
        program = ["-m", "tests.programs.fuzz", "--rank", "--cases", str(share), "--seed", str(options.seed + size)]
        done = launch.run(size, program, mpi=options.mpi, timeout=3600)
        print(done.stdout.strip() or launch.describe(program, done.returncode, done.stdout, done.stderr), flush=True)
        status = status or done.returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
