"""A collective call from its algorithm to its result, on the interpreter of lowered tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from collectives import layout as at
from collectives.algorithms import Algorithm
from collectives.contract import contract
from collectives.extents import Bound
from collectives.plan import Table, Target, lower
from collectives.plans import bound_of, holds
from collectives.proof.reference import Number, Wrong, contribution
from collectives.properties import smallest_part
from collectives.schedule import INPUT, OUTPUT
from tests.unit.table_interpreter import FIFO_LANES, FIFO_SLOTS, Machine
from tests.unit.table_memory import Memory

number = cache(contribution)


@dataclass(frozen=True)
class Case:
    """A collective call on all ranks, ready to be lowered."""

    algorithm: Algorithm
    ranks: int
    count: int
    params: tuple[tuple[str, object], ...] = ()
    segment_bytes: int | None = None  # with one, the algorithm's pipeline
    nodes: tuple[tuple[int, ...], ...] | None = None  # what the algorithm sees; shared memory is within them
    shared: bool = True  # whether there are FIFOs
    root: int = 0
    itemsize: int = 4
    align: int = 1
    piece_bytes: int = 64
    constant: bool = False  # every element of a rank is the same number
    alias: bool = False  # the output is the input

    @property
    def placed(self) -> Sequence[Sequence[int]]:
        return self.nodes or [range(self.ranks)]

    @property
    def bound(self) -> Bound:
        return bound_of(self.algorithm.collective, self.count, self.ranks, self.align)

    def tables(self, weights: Sequence[Sequence[int]] | None = None) -> list[Table]:
        a, params = self.algorithm, dict(self.params)
        if self.segment_bytes:
            params["segment_bytes"] = self.segment_bytes
        schedules = a.schedules(self.ranks, nodes=self.nodes, root=self.root, **params)
        tables = []
        for me, schedule in enumerate(schedules):
            node = next(list(node) for node in self.placed if me in node)
            target = Target(
                self.itemsize,
                self.bound,
                holds(a.collective, self.ranks, me),
                link=lambda peer, node=node: at.SHARED_MEMORY if self.shared and peer in node else at.MPI,  # type: ignore[misc]
                fifo=node.index,
                fifo_lanes=FIFO_LANES if self.shared else 0,
                fifo_slots=FIFO_SLOTS,
                piece_bytes=self.piece_bytes,
                segment_bytes=self.segment_bytes,
                weights=weights[me] if weights else None,
            )
            tables.append(lower(schedule, target))
        return tables

    def value(self, rank: int, element: int) -> Number:
        return number(rank, 0 if self.constant else element)

    def memories(self) -> list[dict[str, Memory]]:
        promise = contract(self.algorithm.collective, self.ranks, self.root)
        made = []
        for me in range(self.ranks):
            memory = {}
            for name, spans in holds(self.algorithm.collective, self.ranks, me).items():
                memory[name] = Memory(sum(map(self.bound.length, spans)) * self.itemsize)
            for buffer, span, (owner,) in promise.before[me]:
                lo, n = self.bound(span.lo), self.bound.length(span)
                if self.constant:
                    parts = [(n * self.itemsize, self.value(owner, 0))] * (n > 0)
                else:
                    parts = [(self.itemsize, self.value(owner, e)) for e in range(lo, lo + n)]
                memory[buffer].write(0, parts)
            if INPUT in memory:
                memory[INPUT].frozen = not self.alias
                if self.alias:
                    memory[OUTPUT] = memory[INPUT]
            made.append(memory)
        return made

    def weights(self, seed: int = 0) -> list[list[int]]:
        """Of every term of every rank, from a dry run, as plans.py makes it."""
        schedules = self.algorithm.schedules(
            self.ranks,
            nodes=self.nodes,
            root=self.root,
            **dict(self.params),
            **({"segment_bytes": 1} if self.segment_bytes else {}),
        )
        parts = max(2 * int(1 / min(map(smallest_part, schedules))) + 2, self.ranks)
        count, segment = -(-parts // self.ranks) * self.ranks, 1 << 62 if self.segment_bytes else None
        dry = replace(self, count=count, itemsize=8, align=1, constant=True, segment_bytes=segment)
        tables = dry.tables()
        machine = Machine([t.words for t in tables], dry.memories(), dry.placed, 8, seed, note=True)
        machine.run()
        assert machine.notes is not None
        return [noted[: table.terms] for noted, table in zip(machine.notes, tables, strict=True)]

    def run(self, tables: Sequence[Sequence[int]], seed: int) -> None:
        """Wrong unless every rank ends with the right sums and means, and floats that are equal on all of them."""
        memories = self.memories()
        Machine(tables, memories, self.placed, self.itemsize, seed).run()
        self.check(memories)

    def check(self, memories: Sequence[dict[str, Memory]]) -> None:
        promise = contract(self.algorithm.collective, self.ranks, self.root)
        seen: dict[int, float] = {}
        for rank, held in enumerate(promise.after):
            home: dict[str, int] = defaultdict(int)
            for buffer, span, owners in held:
                lo, n = self.bound(span.lo), self.bound.length(span)
                element = lo
                for length, got in memories[rank][buffer].read(home[buffer], n * self.itemsize):
                    if length % self.itemsize:
                        raise Wrong("part of an element")
                    for e in [element] if self.constant else range(element, element + length // self.itemsize):
                        self.check_element(f"rank {rank} {buffer} element {e}", got, e, owners, seen)
                    element += length // self.itemsize
                home[buffer] += n * self.itemsize

    def check_element(self, where: str, got: Number, e: int, owners: tuple[int, ...], seen: dict[int, float]) -> None:
        total = sum(self.value(rank, e).total for rank in owners)
        if got.total != total:
            raise Wrong(f"{where}: wrong sum")
        if got.mean * len(owners) != total:
            raise Wrong(f"{where}: wrong mean")
        if seen.setdefault(e, got.rough) != got.rough:
            raise Wrong(f"{where}: not the bits that others have")
