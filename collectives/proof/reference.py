"""Reference interpreter: runs all ranks' schedules on numbers, in one process; messages stream when they please.

It shares no code with the verifier, only the words of schedule.py. A channel holds a few elements, and lets none pass
before both ends of its first message are posted. Folds go element by element, behind the sends of their round that
read what they overwrite. So what would hang an executor with little memory hangs here.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial, reduce
from math import floor
from operator import add
from random import Random
from typing import NamedTuple

from collectives.contract import Contract
from collectives.schedule import COPY, DATA, INPUT, OUTPUT, RECV, SCRATCH, SEND, Lane, Schedule, Span, Step, folds


class Wrong(Exception):
    """The schedules do not do what the contract says."""


class Number(NamedTuple):
    """A value computed in three ways at once."""

    total: int
    mean: Fraction
    weight: int
    rough: float  # rounds, so that its bits tell in which order it was computed


def contribution(rank: int, element: int) -> Number:
    """From a sum of such totals one reads how often each rank's was counted, and of which element."""
    total = (1 << 12 * rank) * (1 + (element << 12 * 64))
    return Number(total, Fraction(total), 1, Random(rank * 7919 + element).uniform(-1, 1))


def combine(operands: Sequence[Number], weights: Sequence[int]) -> Number:
    """Left to right. Weights are the operands' own, one for all elements of an operand, as an executor has them."""
    mean, weight = operands[0].mean, weights[0]
    for operand, more in zip(operands[1:], weights[1:], strict=True):
        share = Fraction(weight, weight + more)
        mean, weight = mean * share + operand.mean * (1 - share), weight + more
    total, heavy = sum(x.total for x in operands), sum(x.weight for x in operands)
    return Number(total, mean, heavy, reduce(add, (x.rough for x in operands)))


Memory = dict[str, dict[int, Number]]  # buffer -> element -> value


@dataclass(eq=False)
class End:
    """One end of a message: where its elements lie or go, and how many have passed."""

    memory: dict[int, Number]
    elements: range
    channel: "Channel"
    passed: int = 0

    @property
    def over(self) -> bool:
        return self.passed == len(self.elements)


@dataclass(eq=False)
class Channel:
    room: int
    sends: deque[End] = field(default_factory=deque)
    receives: deque[End] = field(default_factory=deque)
    inside: deque[Number] = field(default_factory=deque)

    def push(self, end: End) -> bool:
        """The next element of a send, where both ends are posted and there is room."""
        if end.over or not self.receives or self.sends[0] is not end or len(self.inside) == self.room:
            return False
        self.inside.append(load(end.memory, end.elements[end.passed]))
        end.passed += 1
        return True

    def ready(self, end: End) -> bool:
        return bool(self.inside) and self.receives[0] is end

    def pop(self, end: End) -> Number:
        end.passed += 1
        if end.over:
            if not self.sends[0].over or len(self.sends[0].elements) != len(end.elements):
                raise Wrong("the two ends of a message differ in length")
            self.sends.popleft()
            self.receives.popleft()
        return self.inside.popleft()


def load(memory: dict[int, Number], element: int) -> Number:
    if element not in memory:
        raise Wrong(f"element {element} is read and was never written")
    return memory[element]


@dataclass(eq=False)
class Fold:
    """Goes forward by one element when every operand has one, and the round's own sends have read what is there."""

    target: dict[int, Number]
    own: dict[int, Number]
    elements: range
    operands: list[End | None]
    before: list[End]
    weights: list[int] = field(default_factory=list)
    done: int = 0

    def step(self) -> bool:
        if self.done == len(self.elements):
            return False
        e = self.elements[self.done]
        if any(e in send.elements and send.elements.index(e) >= send.passed for send in self.before):
            return False
        if not all(end.channel.ready(end) for end in self.operands if end):
            return False
        values = [end.channel.pop(end) if end else load(self.own, e) for end in self.operands]
        self.weights = self.weights or [value.weight for value in values]
        self.target[e] = combine(values, self.weights)
        self.done += 1
        return True


def sweep(actions: Iterable[Callable[[], bool]]) -> bool:
    """Does them all, and says whether any of them moved."""
    moved = [action() for action in actions]
    return any(moved)


class Machine:
    """All ranks, and the channels between them."""

    def __init__(self, count: int, seed: int):
        self.count, self.random = count, Random(seed)
        self.room = self.random.randrange(1, 4)
        self.channels: dict[tuple[int, ...], Channel] = {}

    def elements(self, span: Span) -> range:
        return range(floor(span.lo * self.count), floor(span.hi * self.count))

    def post(self, rank: int, channel: tuple[int, int], memory: Memory, steps: Sequence[Step]) -> Iterator[bool]:
        """A round: yields whether it moved, until it ends."""
        ends: dict[int, End] = {}
        for i, s in enumerate(steps):
            if s.peer is not None and self.elements(s.span):
                pair = (rank, s.peer) if s.kind == SEND else (s.peer, rank)
                link = self.channels.setdefault((*pair, *channel), Channel(self.room))
                ends[i] = End(memory[s.buffer], self.elements(s.span), link)
                (link.sends if s.kind == SEND else link.receives).append(ends[i])
        sends = [ends[i] for i in ends if steps[i].kind == SEND]
        landing = [ends[i] for i in ends if steps[i].kind == RECV]
        came = {steps[i]: ends[i] for i in ends}
        reductions = []
        for (kind, buffer, span, own), operands in folds(steps).items():
            if kind != COPY and self.elements(span):
                target = memory[buffer]
                before = [end for end in sends if end.memory is target]
                parts = [came[s] if s else None for s in operands]
                reductions.append(Fold(target, memory[own or buffer], self.elements(span), parts, before))

        def land(end: End) -> bool:
            ready = not end.over and end.channel.ready(end)
            if ready:
                e = end.elements[end.passed]
                end.memory[e] = end.channel.pop(end)
            return ready

        actions: list[Callable[[], bool]] = [partial(end.channel.push, end) for end in sends]
        actions += [*(partial(land, end) for end in landing), *(fold.step for fold in reductions)]
        yield True
        while not all(end.over and end not in end.channel.sends for end in ends.values()):
            self.random.shuffle(actions)
            yield sweep(actions)
        for s in steps:
            if s.kind == COPY:
                source = memory[s.own or s.buffer]
                memory[s.buffer].update({e: load(source, e) for e in self.elements(s.span)})
        yield True

    def slot(self, rank: int, memory: Memory, number: int, lane: Lane, slot: int, segments: int) -> Iterator[bool]:
        for k in range(slot, segments, lane.slots) if lane.cells else [0]:
            here = memory | {SCRATCH: {}} if lane.cells else memory
            for steps in lane.rounds:
                part = [s._replace(span=lane.segment(s.span, k, segments)) for s in steps] if lane.cells else steps
                yield from self.post(rank, (number, slot), here, part)

    def rank(self, rank: int, memory: Memory, schedule: Schedule, segments: int) -> Iterator[bool]:
        for phase in schedule.phases:
            live = [
                self.slot(rank, memory, number, lane, slot, segments)
                for number, lane in phase.lanes.items()
                for slot in range(min(lane.slots, segments) if lane.cells else 1)
            ]
            while live:
                self.random.shuffle(live)
                yield sweep(partial(self.advance, live, one) for one in list(live))

    def advance(self, live: list[Iterator[bool]], one: Iterator[bool]) -> bool:
        moved = next(one, None)
        if moved is None:
            live.remove(one)
        return moved is not False

    def run(self, schedules: Sequence[Schedule], memories: list[Memory], segments: int) -> None:
        live = [self.rank(r, memories[r], schedule, segments) for r, schedule in enumerate(schedules)]
        while live:
            everyone = [partial(self.advance, live, one) for one in live]
            some = [one for one in everyone if self.random.random() < 0.7]
            if not sweep(some) and not sweep(partial(self.advance, live, one) for one in list(live)):
                raise Wrong("nobody moves")
        if any(link.sends or link.receives or link.inside for link in self.channels.values()):
            raise Wrong("messages are left over")


def check(
    schedules: Sequence[Schedule], contract: Contract, count: int, *, segments: int, canonical: bool, seed: int
) -> None:
    """Runs on `count` elements. Wrong unless sums and means are exact, and floats equal on all ranks.

    Canonical ones must be those of a fold in rank order.
    """
    machine = Machine(count, seed)

    def fill(held: Sequence[tuple[str, Span, tuple[int, ...]]]) -> Memory:
        memory: Memory = {buffer: {} for buffer in (DATA, INPUT, OUTPUT, SCRATCH)}
        for buffer, span, (owner,) in held:
            memory[buffer].update({e: contribution(owner, e) for e in machine.elements(span)})
        return memory

    memories = [fill(held) for held in contract.before]
    inputs = [dict(memory[INPUT]) for memory in memories]
    machine.run(schedules, memories, segments)
    if inputs != [memory[INPUT] for memory in memories]:
        raise Wrong("an input is overwritten")
    seen: dict[int, float] = {}
    for rank, held in enumerate(contract.after):
        for buffer, span, owners in held:
            for e in machine.elements(span):
                got, parts = load(memories[rank][buffer], e), [contribution(r, e) for r in owners]
                total = sum(x.total for x in parts)
                if (got.total, got.mean) != (total, Fraction(total, len(owners))):
                    raise Wrong(f"rank {rank} {buffer} element {e}: wrong sum or mean")
                if seen.setdefault(e, got.rough) != got.rough:
                    raise Wrong(f"rank {rank} {buffer} element {e}: not the bits that others have")
                if canonical and got.rough != reduce(add, (x.rough for x in parts)):
                    raise Wrong(f"rank {rank} {buffer} element {e}: not folded in rank order")
