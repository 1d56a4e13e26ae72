"""Mutants: schedules with one edit, of a step or its lane, or the same edit at both ends of a message."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from collectives.schedule import (
    DATA,
    INPUT,
    OUTPUT,
    RECV,
    RECV_REDUCE,
    SCRATCH,
    SEND,
    WHOLE,
    Lane,
    Phase,
    Schedule,
    Step,
)

At = tuple[int, ...]  # rank, phase, lane, round, index of a step; or only the first three of a lane

BOTH = ("drop", "twice", "span", "half", "later", "peer")  # what can be done to a message
ONE = (*BOTH, "kind", "buffer", "own", "place", "slots", "cells")  # and to a step or its lane


def edited(schedules: Sequence[Schedule], edits: Mapping[At, Any]) -> list[Schedule]:
    """The schedules with {step: steps} and {lane: Lane} in place of theirs."""

    def relane(at: At, old: Lane) -> Lane:
        rounds = [[t for k, s in enumerate(r) for t in edits.get((*at, i, k), [s])] for i, r in enumerate(old.rounds)]
        here: Lane = edits.get(at, old)
        return here._replace(rounds=tuple(tuple(steps) for steps in rounds if steps))

    def rephase(at: At, phase: Phase) -> Phase:
        return Phase({i: relane((*at, i), lane) for i, lane in phase.lanes.items()})

    def redo(rank: int, schedule: Schedule) -> Schedule:
        return Schedule(tuple(rephase((rank, f), phase) for f, phase in enumerate(schedule.phases)))

    return [redo(rank, schedule) for rank, schedule in enumerate(schedules)]


def mutate(random: Random, schedules: Sequence[Schedule], ends: int) -> tuple[str, list[Schedule]]:
    """What was done, and the mutant: to one step or lane (ends 1), or to both ends of one message (ends 2)."""
    lanes: dict[At, Lane] = {
        (r, f, i): lane
        for r, schedule in enumerate(schedules)
        for f, phase in enumerate(schedule.phases)
        for i, lane in phase.lanes.items()
    }
    steps: dict[At, Step] = {
        (*at, n, k): s for at, lane in lanes.items() for n, r in enumerate(lane.rounds) for k, s in enumerate(r)
    }
    kind = random.choice(ONE if ends == 1 else BOTH)
    chosen = [random.choice(list(steps))] if ends == 1 else random.choice(messages(steps))
    change = Change(random, kind, len(schedules), steps)
    edits: dict[At, Any] = {}
    for end, at in enumerate(chosen):
        change.apply(end, at, lanes[at[:3]], edits)
    return kind, edited(schedules, edits)


def messages(steps: Mapping[At, Step]) -> list[tuple[At, At]]:
    """Both ends of each message."""
    channels: dict[tuple[int, ...], tuple[list[At], list[At]]] = defaultdict(lambda: ([], []))
    for at, s in steps.items():
        if s.peer is not None:
            pair = (at[0], s.peer) if s.kind == SEND else (s.peer, at[0])
            channels[*pair, at[2]][s.kind != SEND].append(at)
    return [both for sends, receives in channels.values() for both in zip(sends, receives, strict=True)]


class Change:
    """One edit, drawn once, so that both ends of a message get the same."""

    def __init__(self, random: Random, kind: str, ranks: int, steps: Mapping[At, Step]):
        self.kind, self.ranks, self.steps = kind, ranks, steps
        self.span = random.choice(sorted({WHOLE, *(s.span for s in steps.values())}))
        self.half, self.off, self.shift = random.randrange(2), random.choice([-1, 1]), random.randrange(1, ranks)
        self.buffer = random.choice([DATA, INPUT, OUTPUT, SCRATCH])
        self.turn = random.choice([SEND, RECV, RECV_REDUCE])

    def apply(self, end: int, at: At, lane: Lane, edits: dict[At, Any]) -> None:
        """End 0 is the send, or the only one."""
        s = self.steps[at]
        match self.kind:
            case "slots":
                edits[at[:3]] = lane._replace(slots=lane.slots + 1)
            case "cells":
                edits[at[:3]] = lane._replace(cells=tuple(x for cell in lane.cells for x in cell.split(2)))
            case "later":
                self.move(at, (*at[:3], at[3] + self.off, 0), edits)
            case "peer" if end:
                self.move(at, ((at[0] + self.shift) % self.ranks, *at[1:]), edits)
            case _:
                edits[at] = self.new(s)

    def new(self, s: Step) -> list[Step]:
        """What takes the step's place."""
        match self.kind:
            case "twice":
                return [s, s]
            case "span":
                return [s._replace(span=self.span)]
            case "half":
                return [s._replace(span=s.span.split(2)[self.half])]
            case "kind" if s.peer is not None:
                return [s._replace(kind=self.turn, own=s.own or (s.buffer if self.turn == RECV_REDUCE else None))]
            case "buffer":
                return [s._replace(buffer=self.buffer)]
            case "own":
                return [s._replace(own=s.own and self.buffer)]
            case "place" if s.kind == RECV_REDUCE:
                return [s._replace(place=s.place + self.off)]
            case "peer" if s.peer is not None:
                return [s._replace(peer=(s.peer + self.shift) % self.ranks)]
        return []

    def move(self, at: At, to: At, edits: dict[At, Any]) -> None:
        """To another round or rank, where there is a step in that place; else the step is dropped."""
        edits[at] = []
        if to in self.steps:
            edits[to] = [*edits.get(to, [self.steps[to]]), self.steps[at]]
