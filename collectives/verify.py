"""Proves that schedules keep their contract, with no MPI running.

Deadlock. rendezvous.py matches both ends of every message and proves that all rounds end, also where messages stream.

Reduction. Values are reduction trees, named by their hash: "the same bits everywhere" is "the same name everywhere".
Every result must hold each contribution that its contract names once, as the same tree on every rank. An operand of a
fold must have one weight all over, since a mean weighs it with one number.

Places. The steps of a round write disjoint places, in buffers that may be written; nothing in the round reads where a
plain recv lands, nor does a fold or copy read another's target. What one lane of a phase writes, no other touches. A
pipeline's cells are disjoint; each of its steps lies in one cell, and no span outside the lane cuts a cell. That is why
one segment stands for all: segments are copies that share nothing, and to all else a cell is one piece.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from hashlib import blake2b
from itertools import chain, groupby, pairwise
from math import lcm
from typing import NamedTuple

from collectives.contract import Contract
from collectives.proof.rendezvous import End, Fault, Meeting, Program, Turn, programs
from collectives.schedule import COPY, INPUT, RECV, SCRATCH, SEND, Schedule, Span

__all__ = ["Fault", "Report", "check_cells", "verify", "weights"]


class Report(NamedTuple):
    """What schedules cost, and the trees they build."""

    rounds: int  # along the longest chain of messages
    messages: int  # sent by the rank that sends most
    sent: Fraction  # by the rank that sends most, in lengths of the message
    folded: Fraction  # by the rank that folds most, in lengths of the message
    canonical: bool  # every result is one fold of its contributions in rank order
    hash: str  # of every span's tree


def verify(schedules: Sequence[Schedule], contract: Contract, segments: int = 1) -> Report:
    """Raises Fault where a schedule is wrong; else reports costs and trees. Pipelines run for that many segments."""
    run = Run.of(schedules, contract, segments)
    return run.report(contract, run.run(contract))


def weights(schedules: Sequence[Schedule], contract: Contract) -> list[list[int]]:
    """What each operand of each fold weighs in a mean: for each rank, by phases, lanes, rounds, folds and places.

    Raises Fault where a schedule is wrong.
    """
    run = Run.of(schedules, contract, 1)
    run.run(contract)
    rounds = [[t for phase in phases for lane in phase for t in lane] for phases in run.programs]
    return [[weight for turn in turns for weight in run.weights.get(turn, ())] for turns in rounds]


def check_cells(schedules: Sequence[Schedule], contract: Contract) -> None:
    """A pipeline's cells are disjoint and in order; its steps stay within one; no span outside the lane cuts one."""
    for rank, schedule in enumerate(schedules):
        for number, phase in enumerate(schedule.phases):
            if any(lane.cells for lane in phase.lanes.values()):
                check_pipelines(rank, schedule, number, contract.layout(rank))


def check_pipelines(rank: int, schedule: Schedule, number: int, layout: Mapping[str, Sequence[Span]]) -> None:
    """Those of one phase of one rank."""
    phase = schedule.phases[number]
    pipelines = {index: lane for index, lane in phase.lanes.items() if lane.cells}
    if pipelines:
        others = (lane.spans() for other in schedule.phases if other is not phase for lane in other.lanes.values())
        cuts = {end for spans in chain(layout.values(), others) for span in spans for end in span}
        for index, lane in pipelines.items():
            where = f"rank {rank} phase {number} lane {index}"
            if lane.slots < 1 or any(a.hi > b.lo for a, b in pairwise(lane.cells)):
                raise Fault(f"{where}: no slots, or its cells overlap or are out of order")
            if any(span not in lane.cell(span) for span in lane.spans()):
                raise Fault(f"{where}: a step's span is in none of its cells")
            if any(cell.lo < cut < cell.hi for cut in cuts for cell in [lane.cell(Span(cut, cut))]):
                raise Fault(f"{where}: a span of another phase or of the contract cuts a cell")


class Forest:
    """Reduction trees. A tree's name is its hash, so equal trees are one, and comparing them costs nothing."""

    def __init__(self) -> None:
        self.ranks: dict[bytes, int] = {}  # whose contributions a tree holds, as bits
        self.weights: dict[bytes, int] = {}  # how many
        self.folds: dict[tuple[bytes, ...], bytes] = {}

    def leaf(self, rank: int) -> bytes:
        return self._name(b"leaf %d" % rank, 1 << rank)

    def fold(self, parts: tuple[bytes, ...], turn: Turn | None = None) -> bytes:
        """Left to right, rounded once: a + b + c is b + a + c, but not a + c + b, nor a + b and + c in turn."""
        if len(parts) == 1:
            return parts[0]
        if parts not in self.folds:
            ranks = sum(self.ranks[part] for part in parts)
            if ranks.bit_count() != sum(self.weights[part] for part in parts):
                raise Fault(f"{turn}: a contribution is counted twice", turn)
            self.folds[parts] = self._name(b"fold".join((b"", *sorted(parts[:2]), *parts[2:])), ranks)
        return self.folds[parts]

    def _name(self, text: bytes, ranks: int) -> bytes:
        name = blake2b(text, digest_size=12).digest()
        self.ranks[name], self.weights[name] = ranks, ranks.bit_count()
        return name


class Run:
    """All ranks' rounds on trees. A place is a number: for each buffer, one for each piece that no span cuts.

    Spans are looked up by identity where they can be: there are few of them, in many steps.
    """

    def __init__(self, programs: Sequence[Program], contract: Contract):
        self.programs, self.forest = programs, Forest()
        layouts = [contract.layout(rank) for rank in range(len(programs))]
        turns = [t for phases in programs for phase in phases for slot in phase for t in slot]
        self.known = {id(x): x for held in contract.before + contract.after for _, x, _ in held}
        self.known |= {id(s.span): s.span for turn in turns for s in turn.steps}
        cuts = sorted({end for span in self.known.values() for end in span})
        self.unit = lcm(*(cut.denominator for cut in cuts))  # lengths are counted in this part of the message
        index = {cut: i for i, cut in enumerate(cuts)}
        self.width = [int((b - a) * self.unit) for a, b in pairwise(cuts)]
        self.pieces = {key: (index[span.lo], index[span.hi]) for key, span in self.known.items()}
        self.length = {key: int(span.size * self.unit) for key, span in self.known.items()}
        self.buffers: dict[str, int] = {}
        self.places: dict[tuple[str, int], range] = {}
        self.weights: dict[Turn, list[int]] = {}  # of the operands of a round's folds
        self.writable = [{p for b in held if b != INPUT for x in held[b] for p in self.at(b, x)} for held in layouts]
        for phase in chain.from_iterable(programs):
            self.check_lanes(phase)
        for turn in turns:
            self.check_round(turn)

    @classmethod
    def of(cls, schedules: Sequence[Schedule], contract: Contract, segments: int) -> "Run":
        check_cells(schedules, contract)
        return cls(programs(schedules, segments), contract)

    def at(self, buffer: str, span: Span) -> range:
        key = buffer, id(span)
        found = self.places.get(key)
        if found is None:
            base = self.buffers.setdefault(buffer, len(self.buffers)) * len(self.width)
            lo, hi = self.pieces[id(span)]
            found = self.places[key] = range(base + lo, base + hi)
        return found

    def check_lanes(self, slots: Sequence[Sequence[Turn]]) -> None:
        """What one lane or slot of a phase writes, no other touches."""
        touched: dict[int, tuple[int, int]] = {}
        written: set[int] = set()
        for turns in filter(None, slots if len(slots) > 1 else ()):
            reads, writes = set[int](), set[int]()
            for s in (s for turn in turns for s in turn.steps):
                (reads if s.kind == SEND else writes).update(self.at(s.buffer, s.span))
                reads.update(self.at(s.own or s.buffer, s.span))
            for place in chain(writes & touched.keys(), reads & written):
                where = f"rank {turns[0].rank} phase {turns[0].phase}"
                lanes = f"(lane, slot) {touched[place]} and {turns[0].channel}"
                raise Fault(f"{where}: {lanes} share a place, and one of them writes it")
            touched |= dict.fromkeys(reads | writes, turns[0].channel)
            written |= writes

    def check_round(self, turn: Turn) -> None:
        """Writes are disjoint and allowed; nothing reads where messages land; nor any fold another's target."""
        if any((s.kind == COPY) != (s.peer is None) or s.peer == turn.rank for s in turn.steps):
            raise Fault(f"{turn}: a message without a peer, or to myself, or a copy with one", turn)
        if any(operands.count(None) != 1 for operands in turn.folds.values()):
            raise Fault(f"{turn}: a fold's places are not 0 to n with one left for my own", turn)
        landing, sent, written = list[int](), list[int](), list[int]()
        for s in turn.steps:
            if s.kind == SEND:
                sent += self.at(s.buffer, s.span)
                continue
            if s.kind == RECV:
                landing += self.at(s.buffer, s.span)
            if not s.buffer.startswith(SCRATCH) and not self.writable[turn.rank].issuperset(self.at(s.buffer, s.span)):
                raise Fault(f"{turn}: writes {s.buffer} {s.span}, which is not to be written", turn, s)
        written += landing
        own = list[int]()
        for _, buffer, span, mine in turn.folds:
            written += self.at(buffer, span)
            if mine and mine != buffer:
                own += self.at(mine, span)
        places = set(written)
        if len(places) < len(written) or not places.isdisjoint(own) or not set(landing).isdisjoint(sent):
            raise Fault(f"{turn}: two steps write one place, or one reads what another writes", turn)

    def run(self, contract: Contract) -> Meeting:
        self.folded = [0] * len(self.programs)
        self.state = [
            {place: self.forest.leaf(owner) for buffer, span, (owner,) in held for place in self.at(buffer, span)}
            for held in contract.before
        ]
        meeting = Meeting(self.programs)
        for turn, over in meeting:
            if over:
                self.state[turn.rank] |= self.written(turn)
            for m in () if over else turn.sends:
                m.carries = self.read(m.out, turn.rank, m.out.step.buffer, m.out.step.span)
        return meeting

    def written(self, turn: Turn) -> dict[int, bytes]:
        came, new = {id(m.back.step): m.carries for m in turn.receives}, dict[int, bytes]()
        for m in turn.receives:
            if m.back.step.kind == RECV:
                new |= zip(self.at(m.back.step.buffer, m.back.step.span), m.carries, strict=True)
        for (_, buffer, span, own), operands in turn.folds.items():
            parts = [came[id(s)] if s else self.read(turn, turn.rank, own or buffer, span) for s in operands]
            weights = [{self.forest.weights[tree] for tree in trees} for trees in parts]
            if any(len(found) > 1 for found in weights):
                raise Fault(f"{turn}: {span} holds sums of different weights, so it has no mean in one step", turn)
            self.weights.setdefault(turn, []).extend(weight for found in weights for weight in found)
            trees = (self.forest.fold(operands, turn) for operands in zip(*parts, strict=True))
            new |= zip(self.at(buffer, span), trees, strict=True)
            self.folded[turn.rank] += self.length[id(span)] * (len(parts) - 1)
        return new

    def read(self, where: Turn | End | str, rank: int, buffer: str, span: Span) -> list[bytes]:
        try:
            return [self.state[rank][place] for place in self.at(buffer, span)]
        except KeyError:
            raise Fault(f"{where}: nothing has been written to some of {buffer} {span}", where) from None

    def last(self, rank: int, buffer: str, span: Span) -> list[Turn]:
        """The rank's last round that writes some of the span."""
        turns = (turn for slots in self.programs[rank] for slot in slots for turn in slot)
        writes = (t for t in turns for s in t.steps if s.kind != SEND and s.buffer == buffer and s.span.overlaps(span))
        return list(deque(writes, maxlen=1))

    def report(self, contract: Contract, meeting: Meeting) -> Report:
        """The contract's end: each result holds its contributions, as the same tree on every rank."""
        result: dict[int, bytes] = {}
        canonical = True
        for rank, held in enumerate(contract.after):
            for buffer, span, owners in held:
                wanted = self.forest.fold(tuple(map(self.forest.leaf, owners)))
                where, at_fault = f"rank {rank} at the end", partial(self.last, rank, buffer, span)
                for piece, tree in zip(
                    range(*self.pieces[id(span)]), self.read(where, rank, buffer, span), strict=True
                ):
                    if self.forest.ranks[tree] != self.forest.ranks[wanted]:
                        raise Fault(f"{where}: {buffer} {span} lacks contributions, or holds others", *at_fault())
                    if result.setdefault(piece, tree) != tree:
                        raise Fault(f"{where}: {buffer} {span} is another reduction tree than elsewhere", *at_fault())
                    canonical &= tree == wanted
        trees = blake2b(digest_size=8)
        for tree, pieces in groupby(sorted(result), key=result.__getitem__):
            length = Fraction(sum(self.width[piece] for piece in pieces), self.unit)
            trees.update(b"%s %s" % (str(length).encode(), tree))
        messages, sent = [0] * len(self.programs), [0] * len(self.programs)
        for m in meeting.messages:
            messages[m.out.turn.rank] += 1
            sent[m.out.turn.rank] += self.length[id(m.out.step.span)]
        most = Fraction(max(sent), self.unit), Fraction(max(self.folded), self.unit)
        cost = max(meeting.clock), max(messages), *most
        return Report(*cost, canonical, trees.hexdigest())
