"""How all ranks' rounds meet: which messages match, in which order rounds end, and that all of them do.

Messages match in step order per channel, that is (source, destination, lane, slot), so one order of events stands for
all. Both ends must name the same span, cells and slots, and nothing may be left over.

Messages may stream: an executor folds what comes piece by piece, and holds only a few pieces, so that no message of a
fold can end long before the others begin. Nor can a send of the same round whose place the fold overwrites, since the
fold follows behind it: it may run ahead, but the proof does not count on that. Therefore

    bundle    the messages of one fold, and the sends of its round that read what it overwrites. A message has two ends,
              so bundles reach from rank to rank; those that share a message are one.
    rule      the messages of a bundle complete when all of them have both ends posted, and all messages ahead of
              them in their channels are complete. Nothing is buffered. A round ends when its messages are complete.

The rule is monotone: what is posted or complete stays so, and only makes more possible. So every order of events ends
in the same state, and if that is the end of all schedules, no timing can make them hang. What completes under this rule
completes under plain rendezvous too, where a message needs only its own two ends; the converse does not hold.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from collectives.schedule import SCRATCH, SEND, Lane, Schedule, Span, Step, Target, folds


class Fault(Exception):
    """What is wrong with a schedule, and where: the rounds in which it shows, and the steps, where they are known."""

    def __init__(self, text: str, *where: "Turn | End | Step | str | None"):
        super().__init__(text)
        turns = (w.turn if isinstance(w, End) else w for w in where)
        self.turns = list(dict.fromkeys(turn for turn in turns if isinstance(turn, Turn)))
        self.steps = [w.step if isinstance(w, End) else w for w in where if isinstance(w, End | Step)]


@dataclass(eq=False, slots=True)
class Turn:
    """A round of one rank, in one slot of a lane."""

    rank: int
    phase: int
    channel: tuple[int, int]  # lane, slot
    number: int
    pipeline: tuple[tuple[Span, ...], int]  # the lane's cells and slots
    steps: Sequence[Step]
    folds: dict[Target, list[Step | None]]
    next: "Turn | None" = None
    sends: "list[Message]" = field(default_factory=list)
    receives: "list[Message]" = field(default_factory=list)
    open: int = 1  # its messages that are not complete; and one more until it is posted
    start: int = -1  # rounds before it along the longest chain of messages; -1 until it is posted
    end: int = -1

    def before(self, other: "Turn") -> bool:
        """Whether the other round can only be posted when this one has ended."""
        here, there = (self.phase, self.number), (other.phase, other.number)
        alike = self.phase < other.phase or self.channel == other.channel
        return self.rank == other.rank and alike and here < there

    def __str__(self) -> str:
        lane, slot = self.channel
        return f"rank {self.rank} phase {self.phase} lane {lane} slot {slot} round {self.number}"


@dataclass(eq=False, slots=True)
class End:
    """One end of a message."""

    turn: Turn
    step: Step

    def __str__(self) -> str:
        s = self.step
        return f"{self.turn}: {s.kind} {s.buffer} {s.span} {'to' if s.kind == SEND else 'from'} {s.peer}"


@dataclass(eq=False, slots=True)
class Message:
    """Both its ends, and its neighbours in its channel."""

    out: End
    back: End
    ahead: "Message | None"
    behind: "Message | None" = None
    complete: bool = False
    bundle: "Bundle" = field(init=False)
    carries: list[bytes] = field(default_factory=list)  # for whoever runs the rounds

    def __post_init__(self) -> None:
        self.bundle = Bundle([self])
        self.out.turn.sends.append(self)
        self.back.turn.receives.append(self)
        self.out.turn.open += 1
        self.back.turn.open += 1
        if self.ahead:
            self.ahead.behind = self


@dataclass(eq=False, slots=True)
class Bundle:
    """Messages that complete together."""

    messages: list[Message]
    missing: int = 0  # ends that are not posted, and messages ahead that are not complete

    def join(self, other: "Bundle") -> None:
        if other is not self:
            self.messages += other.messages
            for message in other.messages:
                message.bundle = self


Program = list[list[list[Turn]]]  # of one rank: phases, their lanes' slots, rounds


Pipelines = dict[tuple[tuple[Span, ...], int], tuple[tuple[Span, ...], int]]


def programs(schedules: Sequence[Schedule], segments: int) -> list[Program]:
    """All ranks' rounds. A pipeline runs for that many segments, each with scratch of its own."""
    known: Pipelines = {}  # so that equal ones are one object, and comparing them costs nothing
    return [program(rank, schedule, segments, known) for rank, schedule in enumerate(schedules)]


def program(rank: int, schedule: Schedule, segments: int, known: Pipelines) -> Program:
    phases: Program = []
    for number, phase in enumerate(schedule.phases):
        slots: dict[tuple[int, int], list[Turn]] = {}
        for index, lane in phase.lanes.items():
            pipeline = known.setdefault((lane.cells, lane.slots), (lane.cells, lane.slots))
            for k in range(segments if lane.cells else 1):
                channel, scratch = (index, k % lane.slots), f"{SCRATCH} {number}.{index}.{k}"
                turns = slots.setdefault(channel, [])
                for steps in segment(lane, k, segments, scratch) if lane.cells else lane.rounds:
                    turns.append(Turn(rank, number, channel, len(turns), pipeline, steps, folds(steps)))
                    if len(turns) > 1:
                        turns[-2].next = turns[-1]
        phases.append(list(slots.values()))
    return phases


def segment(lane: Lane, k: int, segments: int, scratch: str) -> Iterator[list[Step]]:
    moved: dict[Span, Span] = {span: lane.segment(span, k, segments) for span in lane.spans()}
    for steps in lane.rounds:
        here = [s._replace(span=moved[s.span]) for s in steps]
        here = [s._replace(buffer=scratch) if s.buffer == SCRATCH else s for s in here]
        yield [s._replace(own=scratch) if s.own == SCRATCH else s for s in here]


def match(programs: Sequence[Program]) -> list[Message]:
    """Both ends of every message, in step order per channel."""
    channels: dict[tuple[int, int, int, int], tuple[list[End], list[End]]] = {}
    for turn in (turn for phases in programs for slots in phases for turns in slots for turn in turns):
        for s in turn.steps:
            if s.peer is not None:
                pair = (turn.rank, s.peer) if s.kind == SEND else (s.peer, turn.rank)
                channels.setdefault((*pair, *turn.channel), ([], []))[s.kind != SEND].append(End(turn, s))

    messages: list[Message] = []
    alone: list[End] = []
    for sends, receives in channels.values():
        alone += sends[len(receives) :] + receives[len(sends) :]
        last = None
        for out, back in zip(sends, receives, strict=False):
            if out.step.span != back.step.span or out.turn.pipeline != back.turn.pipeline:
                raise Fault(f"{out}, but {back}: not the same span, cells and slots", out, back)
            last = Message(out, back, last)
            messages.append(last)
    if alone:
        raise Fault(f"{len(alone)} messages never meet their other end: {'; '.join(map(str, alone[:3]))}", *alone[:3])
    return messages


def tie(messages: Sequence[Message]) -> None:
    """Bundles the messages of each fold, and the sends of its round that read what it overwrites."""
    for turn in {m.back.turn: None for m in messages if m.back.turn.folds}:
        came = {id(m.back.step): m for m in turn.receives}
        for (_, buffer, span, _), operands in turn.folds.items():
            tied = [came[id(s)] for s in operands if s]
            tied += [m for m in turn.sends if tied and m.out.step.buffer == buffer and m.out.step.span.overlaps(span)]
            for m in tied[1:]:
                tied[0].bundle.join(m.bundle)
    for m in messages:
        m.bundle.missing += 3 if m.ahead else 2
        if m.ahead and m.ahead.bundle is m.bundle:
            ends = m.back, m.ahead.back
            raise Fault(f"{ends[0]}, and {ends[1]}: folded side by side, but one comes behind the other", *ends)


class Meeting:
    """All ranks' rounds, until nothing more can happen. Rounds are yielded when they are posted, and when they end."""

    def __init__(self, programs: Sequence[Program]):
        self.programs, self.messages = programs, match(programs)
        tie(self.messages)
        self.clock = [0] * len(programs)
        self.live = [0] * len(programs)  # slots of the rank's phase that are not done
        self.posting: list[Turn] = []
        self.ending: list[Turn] = []
        self.ready: list[Bundle] = []

    def __iter__(self) -> Iterator[tuple[Turn, bool]]:
        """Each round twice: with False when it is posted, with True when it ends. Fault where a round never ends."""
        for rank in range(len(self.programs)):
            self.begin(rank, 0)
        while self.posting or self.ready or self.ending:
            if self.ready:
                self.complete(self.ready.pop())
            elif self.ending:
                turn = self.ending.pop()
                yield turn, True
                self.follow(turn)
            else:
                turn = self.posting.pop()
                yield turn, False
                for m in turn.sends + turn.receives:
                    self.come(m.bundle)
                self.close(turn)
        if stuck := [m for m in self.messages if not m.complete]:
            text, *ends = self.explain(stuck)
            raise Fault(f"deadlock: {text}", *ends)

    def begin(self, rank: int, phase: int) -> None:
        """Posts the first rounds of the first phase from there on that has any."""
        for slots in self.programs[rank][phase:]:
            if firsts := [turns[0] for turns in slots if turns]:
                self.live[rank] = len(firsts)
                for turn in firsts:
                    turn.start = self.clock[rank]
                self.posting += firsts
                return

    def come(self, bundle: Bundle) -> None:
        bundle.missing -= 1
        if not bundle.missing:
            self.ready.append(bundle)

    def complete(self, bundle: Bundle) -> None:
        for m in bundle.messages:
            m.complete = True
            for turn in (m.out.turn, m.back.turn):
                turn.end = max(turn.end, 1 + max(m.out.turn.start, m.back.turn.start))
                self.close(turn)
            if m.behind:
                self.come(m.behind.bundle)

    def close(self, turn: Turn) -> None:
        turn.open -= 1
        if not turn.open:
            self.ending.append(turn)

    def follow(self, turn: Turn) -> None:
        """What comes after a round: the next one of its lane, or when all lanes are done the next phase."""
        end = max(turn.start, turn.end)
        if turn.next:
            turn.next.start = end
            self.posting.append(turn.next)
            return
        self.clock[turn.rank] = max(self.clock[turn.rank], end)
        self.live[turn.rank] -= 1
        if not self.live[turn.rank]:
            self.begin(turn.rank, turn.phase + 1)

    # Deadlock: who waits for whom, until the chain comes back to a round where it was

    def explain(self, stuck: Sequence[Message]) -> "tuple[Any, ...]":
        """What to say, and the ends of messages that it is about."""
        posted = [turn for m in stuck for turn in (m.out.turn, m.back.turn) if turn.start >= 0]
        chain: dict[Turn, tuple[str, End, End]] = {}
        turn = posted[0]
        while turn not in chain:
            mine, late = self.late(turn)
            if late is None:
                behind = "and others, are posted at both ends, but each comes behind another in its channel"
                return f"{mine}, {behind}", mine
            streams = "" if self.meet(mine, late) else ", with which it streams"
            chain[turn] = f"{mine} waits for {late}{streams}", mine, late
            turn = next(t for t in posted if t.before(late.turn))
        circle = list(chain.values())[list(chain).index(turn) :]
        return "; ".join(text for text, _, _ in circle), *(end for _, *ends in circle for end in ends)

    def meet(self, mine: End, late: End) -> bool:
        """Whether they are the two ends of one message."""
        return any({m.out, m.back} == {mine, late} for m in mine.turn.sends + mine.turn.receives)

    def late(self, turn: Turn) -> tuple[End, End | None]:
        """A message of the round that is not complete, and an end that it waits for."""
        m = next(m for m in turn.sends + turn.receives if not m.complete)
        mine, bundles = m.out if m.out.turn is turn else m.back, [m.bundle]
        for bundle in bundles:
            for other in bundle.messages:
                for end in (other.out, other.back):
                    if end.turn.start < 0:
                        return mine, end
                if other.ahead and not other.ahead.complete and other.ahead.bundle not in bundles:
                    bundles.append(other.ahead.bundle)
        return mine, None
