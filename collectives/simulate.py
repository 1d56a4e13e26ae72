"""Discrete events: when the ranks of a collective are done, on links as LogGP has them.

A message's head leaves its rank's port, and alpha later enters what lies on its way, one after the other, without
waiting for its tail. Each resource serves messages in the order in which they come, and is busy with one for its bytes
and, at a port, a gap. What a rank sends in one round goes out together, in equal shares, to the next ranks first. A
received operand is folded when it is there, by the rank's processor.

Rounds, lanes, phases and slots are those of schedule.py: a round starts when the one before it is done at this rank; a
slot runs its segments in sequence; a phase starts when all lanes of the one before it are done.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate
from math import ceil
from typing import Any

from collectives.foresight.fabric import PORT, PROCESSOR, Costs, Route, costs_of
from collectives.foresight.traffic import Course, Traffic

LONG = 48  # segments from which a pipeline is taken to go on as it went before
STEADY = (12, 36)  # segments between whose ends that is measured: whole turns of 2, 3, 4 and 8 slots


@dataclass(frozen=True)
class Simulated:
    """`us`: until the last rank is done. `busy`: the share of that for which the busiest resource of a kind worked."""

    us: float
    busy: dict[str, float]
    messages: int


@dataclass
class Track:
    """A lane of a phase, over all ranks: when the segments were done that a long pipeline is measured by."""

    beyond: int = 0  # segments that are not simulated
    ended: dict[int, float] = field(default_factory=lambda: dict.fromkeys(STEADY, 0.0))

    def note(self, segment: int, now: float) -> None:
        if segment + 1 in self.ended and now > self.ended[segment + 1]:
            self.ended[segment + 1] = now

    @property
    def rest(self) -> float:
        """Microseconds that the segments beyond will take."""
        first, last = STEADY
        return self.beyond * (self.ended[last] - self.ended[first]) / (last - first)


class Flow:
    """A slot of a lane of one rank: which segment and round it is in, and what that still waits for."""

    __slots__ = ("left", "posts", "rank", "ready", "round", "scale", "segment", "segments", "slot", "stride", "track")

    def __init__(self, rank: int, course: Course, slot: int, stride: int, segments: int, scale: float, track: Track):
        self.rank, self.posts, self.slot, self.stride, self.track = rank, course.posts, slot, stride, track
        self.segment, self.segments, self.scale = slot, segments, scale  # scale: bytes of what is 1 in a Post
        self.round, self.left, self.ready = 0, 0, 0.0


class Message:
    """`to`: the flow that has posted its receive, and how long folding takes it; `at`: when all of it is there."""

    __slots__ = ("at", "cost", "hop", "nbytes", "sender", "to", "way")

    def __init__(self, sender: Flow, nbytes: float, way: Route, cost: Costs):
        self.sender, self.nbytes, self.way, self.cost = sender, nbytes, way, cost
        self.to: tuple[Flow, float] | None = None
        self.at: float | None = None
        self.hop = 1  # the next of its way


def simulate(
    traffic: Traffic,
    nbytes: int,
    segment_bytes: int | None = None,
    piece_bytes: int | None = None,
    costs: dict[str, Costs] | None = None,
) -> Simulated:
    """The time of a collective on a message of nbytes.

    segment_bytes: of a pipeline's segments, about. piece_bytes: what a node kernel cuts a message into, with a gap for
    each piece. costs: of links, instead of those of the traffic's network. ValueError where the schedules hang.
    """
    if costs is None:
        costs = costs_of(traffic.fabric.network, traffic.fabric.inside, nbytes)
    return _Run(traffic, nbytes, segment_bytes, piece_bytes, costs).result()


class _Run:
    """One simulation. Events are (time, number, what to do, two arguments for that)."""

    def __init__(
        self,
        traffic: Traffic,
        nbytes: int,
        segment_bytes: int | None,
        piece_bytes: int | None,
        costs: dict[str, Costs],
    ):
        self.traffic, self.nbytes, self.costs = traffic, nbytes, costs
        self.segment_bytes, self.piece_bytes = segment_bytes, piece_bytes
        self.free = [0.0] * traffic.fabric.resources  # from when on a resource serves whoever comes
        self.work = [0.0] * traffic.fabric.resources
        self.events: list[tuple[float, int, Callable[..., None], Any, Any]] = []
        self.number = self.messages = 0
        self.sent: dict[int, list[Message]] = defaultdict(list)  # by channel: no receive is posted yet
        self.awaited: dict[int, list[tuple[Flow, float]]] = defaultdict(list)  # by channel: nothing is sent yet
        ranks = len(traffic.ranks)
        self.phase, self.open, self.done = [-1] * ranks, [0] * ranks, [0.0] * ranks  # open: flows of the phase
        self.tracks: dict[tuple[int, int], Track] = {}

    def result(self) -> Simulated:
        ranks = self.traffic.ranks
        for rank in range(len(ranks)):
            self._next_phase(rank)
        events = self.events
        while events:
            now, _, act, first, second = heappop(events)
            act(now, first, second)
        stuck = next((rank for rank, phases in enumerate(ranks) if self.phase[rank] < len(phases)), None)
        if stuck is not None:
            raise ValueError(f"the schedules hang: rank {stuck} waits for what nobody sends or takes")
        last, rest = max(self.done, default=0.0), dict[int, float]()
        start = sum(cost.start for cost in self.costs.values())
        for (phase, _), track in self.tracks.items():
            rest[phase] = max(rest.get(phase, 0.0), track.rest)
        busy: dict[str, float] = {}
        for resource, us in enumerate(self.work):
            if us:
                kind = self.traffic.fabric.kind(resource)
                busy[kind] = max(busy.get(kind, 0.0), us / last)
        return Simulated(start + last + sum(rest.values()), busy, self.messages)

    def _at(self, time: float, act: Callable[..., None], first: Any, second: Any = None) -> None:
        self.number += 1
        heappush(self.events, (time, self.number, act, first, second))

    # ------------------------------------------------------------ phases and rounds
    def _next_phase(self, rank: int) -> None:
        self.phase[rank] += 1
        phases = self.traffic.ranks[rank]
        if self.phase[rank] < len(phases):
            flows = [flow for course in phases[self.phase[rank]] for flow in self._flows(rank, course)]
            self.open[rank] = len(flows)
            for flow in flows:
                self._at(self.done[rank], self._post, flow)

    def _flows(self, rank: int, course: Course) -> list[Flow]:
        track = self.tracks.setdefault((self.phase[rank], course.lane), Track())
        if not course.cell:
            return [Flow(rank, course, 0, 1, 1, self.nbytes, track)]
        segments = max(1, ceil(course.cell * self.nbytes / self.segment_bytes)) if self.segment_bytes else 1
        scale, slots = self.nbytes / segments, min(course.slots, segments)
        if segments > LONG:
            track.beyond = (segments - LONG) // slots * slots
            segments -= track.beyond
        return [Flow(rank, course, slot, slots, segments, scale, track) for slot in range(slots)]

    def _post(self, now: float, flow: Flow, _: object) -> None:
        """A round's messages, all at once."""
        post, slot, scale = flow.posts[flow.round], flow.slot, flow.scale
        flow.left, flow.ready = 1 + len(post.receives), now  # 1: until all is posted
        leaving: dict[int, list[Message]] = {}
        for channel, size, way in post.sends:
            message = Message(flow, size * scale, way, self.costs[way.link])
            receivers = self.awaited.get(channel + slot)
            if receivers:
                message.to = receivers.pop(0)
            else:
                self.sent[channel + slot].append(message)
            if message.to or message.nbytes <= message.cost.eager:
                leaving.setdefault(way.hops[0][0], []).append(message)
            else:
                flow.left += 1
        for port, messages in leaving.items():
            flow.ready = max(flow.ready, self._leave(now, port, messages))
        for channel, size, link in post.receives:
            to, there = (flow, size * scale * self.costs[link].gamma), self.sent.get(channel + slot)
            if not there:
                self.awaited[channel + slot].append(to)
                continue
            message = there.pop(0)
            message.to = to
            if message.at is not None:
                self._arrived(now, message.at, to)
            elif message.nbytes > message.cost.eager:
                sender = message.sender
                sender.ready = max(sender.ready, self._leave(now, message.way.hops[0][0], [message]))
                self._ended(sender)
        self._ended(flow)

    def _ended(self, flow: Flow) -> None:
        """One of those that a round waits for."""
        flow.left -= 1
        if flow.left:
            return
        flow.round += 1
        if flow.round == len(flow.posts):
            flow.track.note(flow.segment, flow.ready)
            flow.round, flow.segment = 0, flow.segment + flow.stride
            if flow.segment >= flow.segments:
                self._finished(flow)
                return
        self._at(flow.ready, self._post, flow)

    def _finished(self, flow: Flow) -> None:
        rank = flow.rank
        self.done[rank] = max(self.done[rank], flow.ready)
        self.open[rank] -= 1
        if not self.open[rank]:
            self._next_phase(rank)

    # ------------------------------------------------------------ messages
    def _leave(self, now: float, port: int, messages: Sequence[Message]) -> float:
        """Messages that start together share the port. When the last has left it."""
        free = self.free
        start = free[port] if free[port] > now else now
        taken = [self._ports(each) for each in messages]
        ends = shares(taken) if len(taken) > 1 else taken
        for message, end in zip(messages, ends, strict=True):
            self._at(start + message.cost.alpha + message.way.alpha_us, self._carry, message, end - message.cost.gap)
        free[port] = start + sum(taken)
        self.work[port] += sum(taken)
        self.messages += len(messages)
        return start + max(ends) - messages[0].cost.gap

    def _ports(self, message: Message) -> float:
        """How long a message takes a port."""
        cost, pieces = message.cost, 1
        if self.piece_bytes:
            pieces = ceil(message.nbytes / self.piece_bytes)
        return message.nbytes * cost.per_byte[0] + pieces * cost.gap

    def _carry(self, now: float, message: Message, lasting: float) -> None:
        """A message's head is before the next of its hops, and its tail follows in so long."""
        free, cost, hops, hop, end = self.free, message.cost, message.way.hops, message.hop, now + lasting
        while hop < len(hops):
            resource, kind = hops[hop]
            busy, gap = message.nbytes * cost.per_byte[kind], 0.0
            if kind == PORT:
                busy, gap = self._ports(message), cost.gap
            head = free[resource] if free[resource] > now else now
            free[resource] = head + busy
            self.work[resource] += busy
            if head + busy - gap > end:
                end = head + busy - gap
            hop += 1
            if head > now:  # it waits: what is behind serves others meanwhile
                message.hop = hop
                self._at(head, self._carry, message, end - head)
                return
        message.at = end
        if message.to:
            self._arrived(now, end, message.to)

    def _arrived(self, now: float, at: float, to: tuple[Flow, float]) -> None:
        flow, folding = to
        if folding:
            self._at(at if at > now else now, self._fold, flow, folding)
            return
        if at > flow.ready:
            flow.ready = at
        self._ended(flow)

    def _fold(self, now: float, flow: Flow, folding: float) -> None:
        processor = 3 * flow.rank + PROCESSOR
        start = self.free[processor] if self.free[processor] > now else now
        self.free[processor] = start + folding
        self.work[processor] += folding
        if start + folding > flow.ready:
            flow.ready = start + folding
        self._ended(flow)


def shares(taken: Sequence[float]) -> list[float]:
    """When each is done, where all start together and have equal shares until they are done."""
    order = sorted(range(len(taken)), key=taken.__getitem__)
    done, before, left = [0.0] * len(taken), list(accumulate(taken[i] for i in order)), len(taken)
    for place, i in enumerate(order):
        done[i] = before[place] + (left - place - 1) * taken[i]
    return done
