"""Schedules as the simulator runs them: who posts which messages, in fractions of the collective's own.

Where nodes are equal and do the same but for where they stand, those of one block stand for all: a message to another
block goes to the rank of the same place in this one. Blocks may be alike under shifting them around (a ring) or under
flipping bits of their numbers (recursive doubling); which of the two, the schedules themselves show.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from collectives.errors import UnsupportedError
from collectives.foresight.fabric import Fabric, Route, alike, blocks
from collectives.foresight.network import MPI, Network
from collectives.schedule import COPY, RECV_REDUCE, SEND, Lane, Schedule, Span, Step

Emit = Callable[[int], Schedule]  # a rank's schedule
Apart = Callable[[int, int, int], int]  # (my block, the peer's, number of blocks): how far apart
STEP_BYTES = 600  # of memory that a step takes here, more or less
GIB = 1 << 30
CHANNEL_SLOTS = 16  # of a lane, at most


class Post(NamedTuple):
    """The messages of a round: (channel, size, way) for sends, (channel, size to fold, class of link) for receives.

    Sizes are fractions of the collective's message. A slot's channel is the lane's plus the slot's number.
    """

    sends: tuple[tuple[int, float, Route], ...]
    receives: tuple[tuple[int, float, str], ...]


class Course(NamedTuple):
    """A lane of one rank. `cell`: the longest cell of a pipeline, which is cut into segments; 0 where there is none."""

    lane: int
    posts: tuple[Post, ...]
    cell: float
    slots: int


@dataclass
class Traffic:
    """What the simulated ranks do: for each its phases, each of these its lanes."""

    fabric: Fabric
    ranks: list[list[list[Course]]]
    symmetric: bool  # whether one block of nodes stands for all
    channels: dict[tuple[int, int, int, int], int] = field(default_factory=dict)


def shifted(mine: int, other: int, count: int) -> int:
    return (other - mine) % count


def flipped(mine: int, other: int, _: int) -> int:
    return other ^ mine


def traffic(network: Network, emit: Emit, kernel: str | None, memory: int) -> Traffic:
    """The traffic of everyone's schedules, or of one block's where blocks are alike.

    UnsupportedError where it would take more than `memory` bytes.
    """
    if (block := alike(network)) and (found := _of_block(network, emit, kernel, memory, block)):
        return found
    ranks = network.ranks
    _fits(emit, range(0, ranks, max(1, ranks // 4)), ranks, memory, network)
    whole = Traffic(Fabric(network, kernel), [], symmetric=False)
    for rank in range(ranks):
        whole.ranks.append(_course_of(whole, emit(rank), rank, 0, None))
    return whole


def _fits(emit: Emit, sample: Sequence[int], ranks: int, memory: int, network: Network) -> None:
    steps = [
        sum(len(r) for p in emit(rank).phases for lane in p.lanes.values() for r in lane.rounds) for rank in sample
    ]
    need = sum(steps) / len(steps) * ranks * STEP_BYTES
    if need > memory:
        raise UnsupportedError(
            f"simulating {ranks} ranks on {network.shape} would take about {need / GIB:.1f} GiB of memory, and "
            f"{memory / GIB:.1f} GiB may be used; take fewer ranks, equal nodes, or an algorithm of fewer messages"
        )


def _of_block(network: Network, emit: Emit, kernel: str | None, memory: int, block: int) -> Traffic | None:
    """The first block's traffic, if the others' is the same."""
    fabric = Fabric(network, kernel, block)
    mine = range(fabric.first[block])
    _fits(emit, mine[:1], len(mine), memory, network)
    schedules = [emit(rank) for rank in mine]
    count = network.nodes // block
    for apart in (shifted, flipped):
        if apart is flipped and count & count - 1:
            break
        first = [_looks(schedule, fabric, 0, apart) for schedule in schedules]
        if all(
            _looks(emit(number * len(mine) + rank), fabric, number, apart) == first[rank]
            for number in blocks(network, block)
            for rank in mine
        ):
            whole = Traffic(fabric, [], symmetric=True)
            for rank, schedule in enumerate(schedules):
                whole.ranks.append(_course_of(whole, schedule, rank, count, apart))
            return whole if _matches(whole) else None
    return None


def _looks(schedule: Schedule, fabric: Fabric, number: int, apart: Apart) -> list[int]:
    """Each phase of a rank's schedule as one would see it from another block: equal where what is done is alike."""
    count, each = fabric.network.nodes // fabric.block, fabric.first[fabric.block]

    def seen(s: Step) -> tuple[object, ...]:
        if s.peer is None:
            return (s.kind,)
        block, place = divmod(s.peer, each)
        return s.kind, fraction(s.span), place, apart(number, block, count)

    def lane_seen(lane: Lane) -> tuple[object, ...]:
        rounds = tuple(frozenset(Counter(map(seen, steps)).items()) for steps in lane.rounds)
        return lane.slots, rounds

    return [hash(tuple((number, lane_seen(lane)) for number, lane in phase.lanes.items())) for phase in schedule.phases]


@lru_cache(1 << 16)
def fraction(span: Span) -> float:
    """The part of the message that a span is."""
    return float(span.size)


def _matches(whole: Traffic) -> bool:
    """Whether what is sent on each channel is received there."""
    sent: Counter[int] = Counter()
    for course in (course for phases in whole.ranks for courses in phases for course in courses):
        for post in course.posts:
            sent.update(channel for channel, _, _ in post.sends)
            sent.subtract(channel for channel, _, _ in post.receives)
    return not any(sent.values())


def _course_of(whole: Traffic, schedule: Schedule, rank: int, count: int, apart: Apart | None) -> list[list[Course]]:
    fabric = whole.fabric
    each = fabric.first[fabric.block]

    def channel(source: int, target: int, distance: int, lane: int) -> int:
        key = source, target, distance, lane
        return whole.channels.setdefault(key, CHANNEL_SLOTS * len(whole.channels))

    def ahead(s: Step) -> int:
        return ((s.peer or 0) - rank) % fabric.network.ranks

    def post(steps: Sequence[Step], lane: int) -> Post:
        sends, receives = [], []
        for s in sorted(steps, key=ahead) if len(steps) > 2 else steps:
            if s.kind == COPY or s.peer is None:
                continue
            block, place = divmod(s.peer, each)
            size = fraction(s.span)
            if s.kind == SEND:
                way = ways.get(s.peer) or ways.setdefault(s.peer, fabric.route(rank, s.peer))
                sends.append((channel(rank, place, apart(0, block, count) if apart else 0, lane), size, way))
            else:
                at = channel(place, rank, apart(block, 0, count) if apart else 0, lane)
                inside = fabric.node_of[rank] == fabric.node_of[s.peer]
                receives.append((at, size if s.kind == RECV_REDUCE else 0.0, fabric.inside if inside else MPI))
        return Post(tuple(sends), tuple(receives))

    def course(number: int, lane: Lane) -> Course:
        cell = max((fraction(cell) for cell in lane.cells), default=0.0)
        posts = tuple(post(steps, number) for steps in lane.rounds)
        return Course(number, posts, cell, lane.slots)

    ways: dict[int, Route] = {}
    return [[course(number, lane) for number, lane in phase.lanes.items()] for phase in schedule.phases]
