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

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from hashlib import blake2b
from itertools import chain, groupby, pairwise, product
from typing import Any, NamedTuple

from collectives.algorithms import KERNEL_BYTES, SEGMENT_BYTES, SLOTS, Algorithm, every, names
from collectives.algorithms.registry import Nodes
from collectives.contract import ROOTED, Contract, contract
from collectives.rendezvous import Fault, Meeting, Program, Turn, programs
from collectives.schedule import COPY, INPUT, RECV, SCRATCH, SEND, Schedule, Span

__all__ = ["Fault", "Report", "prove", "shape", "verify", "weights"]


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


def check_cells(rank: int, schedule: Schedule, layout: Mapping[str, Sequence[Span]]) -> None:
    """A pipeline's cells are disjoint and in order; its steps stay within one; no span outside the lane cuts one."""
    for number, phase in enumerate(schedule.phases):
        pipelines = {index: lane for index, lane in phase.lanes.items() if lane.cells}
        if not pipelines:
            continue
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
        self.folds: dict[tuple[bytes, ...], bytes] = {}

    def leaf(self, rank: int) -> bytes:
        return self._name(b"leaf %d" % rank, 1 << rank)

    def fold(self, parts: tuple[bytes, ...], where: object = "") -> bytes:
        """Left to right, rounded once: a + b + c is b + a + c, but not a + c + b, nor a + b and + c in turn."""
        if len(parts) == 1:
            return parts[0]
        if parts not in self.folds:
            ranks = sum(self.ranks[part] for part in parts)
            if ranks.bit_count() != sum(self.weight(part) for part in parts):
                raise Fault(f"{where}: a contribution is counted twice")
            self.folds[parts] = self._name(b"fold".join((b"", *sorted(parts[:2]), *parts[2:])), ranks)
        return self.folds[parts]

    def weight(self, tree: bytes) -> int:
        return self.ranks[tree].bit_count()

    def _name(self, text: bytes, ranks: int) -> bytes:
        name = blake2b(text, digest_size=12).digest()
        self.ranks[name] = ranks
        return name


class Run:
    """All ranks' rounds on trees. A place is a number: for each buffer, one for each piece that no span cuts."""

    def __init__(self, programs: Sequence[Program], layouts: Sequence[Mapping[str, Sequence[Span]]]):
        self.programs, self.forest = programs, Forest()
        turns = [t for phases in programs for phase in phases for slot in phase for t in slot]
        spans = dict.fromkeys(x for layout in layouts for held in layout.values() for x in held)
        spans |= {s.span: None for turn in turns for s in turn.steps}
        cuts = sorted({end for span in spans for end in span})
        index = {cut: i for i, cut in enumerate(cuts)}
        self.width = [b - a for a, b in pairwise(cuts)]
        self.pieces = {span: (index[span.lo], index[span.hi]) for span in spans}
        self.buffers: dict[str, int] = {}

        self.weights: dict[Turn, list[int]] = {}  # of the operands of a round's folds
        self.writable = [{p for b in held if b != INPUT for x in held[b] for p in self.at(b, x)} for held in layouts]
        for phase in chain.from_iterable(programs):
            self.check_lanes(phase)
        for turn in turns:
            self.check_round(turn)

    @classmethod
    def of(cls, schedules: Sequence[Schedule], contract: Contract, segments: int) -> "Run":
        layouts = [contract.layout(rank) for rank in range(len(schedules))]
        for rank, (schedule, layout) in enumerate(zip(schedules, layouts, strict=True)):
            check_cells(rank, schedule, layout)
        return cls(programs(schedules, segments), layouts)

    def at(self, buffer: str, span: Span) -> range:
        base = self.buffers.setdefault(buffer, len(self.buffers)) * len(self.width)
        lo, hi = self.pieces[span]
        return range(base + lo, base + hi)

    def check_lanes(self, slots: Sequence[Sequence[Turn]]) -> None:
        """What one lane or slot of a phase writes, no other touches."""
        touched: dict[int, tuple[int, int]] = {}
        written: set[int] = set()
        for turns in slots if len(slots) > 1 else ():
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
            raise Fault(f"{turn}: a message without a peer, or to myself, or a copy with one")
        if any(operands.count(None) != 1 for operands in turn.folds.values()):
            raise Fault(f"{turn}: a fold's places are not 0 to n with one left for my own")
        landing = [p for s in turn.steps if s.kind == RECV for p in self.at(s.buffer, s.span)]
        written = landing + [p for _, buffer, span, _ in turn.folds for p in self.at(buffer, span)]
        own = {p for _, buffer, span, own in turn.folds if own and own != buffer for p in self.at(own, span)}
        sent = {p for s in turn.steps if s.kind == SEND for p in self.at(s.buffer, s.span)}
        if len(set(written)) < len(written) or own & set(written) or sent & set(landing):
            raise Fault(f"{turn}: two steps write one place, or one reads what another writes")
        for s in turn.steps:
            free = s.kind == SEND or s.buffer.startswith(SCRATCH)
            if not free and not self.writable[turn.rank].issuperset(self.at(s.buffer, s.span)):
                raise Fault(f"{turn}: writes {s.buffer} {s.span}, which is not to be written")

    def run(self, contract: Contract) -> Meeting:
        self.folded = [Fraction(0)] * len(self.programs)
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
        came, new = {m.back.step: m.carries for m in turn.receives}, dict[int, bytes]()
        for s in came:
            if s.kind == RECV:
                new |= zip(self.at(s.buffer, s.span), came[s], strict=True)
        for (_, buffer, span, own), operands in turn.folds.items():
            parts = [came[s] if s else self.read(turn, turn.rank, own or buffer, span) for s in operands]
            if any(len({self.forest.weight(tree) for tree in trees}) > 1 for trees in parts):
                raise Fault(f"{turn}: {span} holds sums of different weights, so it has no mean in one step")
            self.weights.setdefault(turn, []).extend(self.forest.weight(trees[0]) for trees in parts)
            trees = (self.forest.fold(operands, turn) for operands in zip(*parts, strict=True))
            new |= zip(self.at(buffer, span), trees, strict=True)
            self.folded[turn.rank] += span.size * (len(parts) - 1)
        return new

    def read(self, where: object, rank: int, buffer: str, span: Span) -> list[bytes]:
        try:
            return [self.state[rank][place] for place in self.at(buffer, span)]
        except KeyError:
            raise Fault(f"{where}: nothing has been written to some of {buffer} {span}") from None

    def report(self, contract: Contract, meeting: Meeting) -> Report:
        """The contract's end: each result holds its contributions, as the same tree on every rank."""
        result: dict[int, bytes] = {}
        canonical = True
        for rank, held in enumerate(contract.after):
            for buffer, span, owners in held:
                wanted = self.forest.fold(tuple(map(self.forest.leaf, owners)))
                where = f"rank {rank} at the end"
                for piece, tree in zip(range(*self.pieces[span]), self.read(where, rank, buffer, span), strict=True):
                    if self.forest.ranks[tree] != self.forest.ranks[wanted]:
                        raise Fault(f"{where}: {buffer} {span} lacks contributions, or holds others")
                    if result.setdefault(piece, tree) != tree:
                        raise Fault(f"{where}: {buffer} {span} is another reduction tree than elsewhere")
                    canonical &= tree == wanted
        trees = blake2b(digest_size=8)
        for tree, pieces in groupby(sorted(result), key=result.__getitem__):
            trees.update(b"%s %s" % (str(sum(self.width[piece] for piece in pieces)).encode(), tree))
        messages, sent = [0] * len(self.programs), [Fraction(0)] * len(self.programs)
        for m in meeting.messages:
            messages[m.out.turn.rank] += 1
            sent[m.out.turn.rank] += m.out.step.span.size
        cost = max(meeting.clock), max(messages), max(sent), max(self.folded)
        return Report(*cost, canonical, trees.hexdigest())


# Every algorithm at once


def shape(text: str) -> list[list[int]]:
    """The ranks of each node: "2x3" is two nodes of three ranks, "3+1" a node of three and one of one."""
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*|(\+[1-9]\d*)*)", text):
        raise ValueError(f"{text!r} is no shape of nodes: write 2x3 for two nodes of three ranks, 3+1 for uneven ones")
    nodes, _, ranks = text.partition("x")
    sizes = [int(ranks)] * int(nodes) if ranks else [int(n) for n in text.split("+")]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [list(range(end - n, end)) for n, end in zip(sizes, ends, strict=True)]


SHAPES = tuple(map(shape, ("2x2", "2x3", "3x4", "3+1"))) + ([[0, 2, 4], [1, 3]],)


def prove(
    collective: str | None = None,
    ranks: Iterable[int] = range(1, 18),
    shapes: Iterable[Nodes] = SHAPES,
    algorithms: Iterable[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Proves what is registered, one row for each algorithm, number of ranks, shape of nodes, root and setting.

    Algorithms that take nodes are proved for the shapes, and for each number of ranks in nodes of four, the last one
    smaller. `bytes_sent` is by the rank that sends most, in lengths of the message. `order` is "fixed" where every
    result is folded in rank order, else "any". What an algorithm declares that it cannot serve is left out. ValueError
    for a name that is not there.
    """
    found, sizes, nodes = every(collective), list(ranks), [[list(node) for node in x] for x in shapes]
    there = dict.fromkeys(names(collective) if collective else (a.name for a in found))
    wanted = set(there if algorithms is None else algorithms)
    if unknown := sorted(wanted - there.keys()):
        raise ValueError(f"no algorithm is called {', '.join(unknown)}; there are {', '.join(there)}")
    fours = [[list(range(i, min(i + 4, p))) for i in range(0, p, 4)] for p in sizes]
    for a in (a for a in found if a.name in wanted):
        cases: list[tuple[int, Nodes | None]] = (
            [(sum(map(len, x)), x) for x in fours + nodes] if a.needs_nodes else [(p, None) for p in sizes]
        )
        for p, x in cases:
            for root in sorted({0, p // 2, p - 1}) if a.collective in ROOTED else [None]:
                for params in settings(a) if not a.refusal(p, x) else ():
                    yield row(a, p, x, root, params)


def settings(a: Algorithm) -> Iterator[dict[str, Any]]:
    """Every choice of the parameters that make its schedule, plain and as a pipeline."""
    lowered = (SEGMENT_BYTES.name, SLOTS.name, KERNEL_BYTES)
    own = [parameter for parameter in a.parameters if parameter.name not in lowered]
    for values in product(*(parameter.choices for parameter in own)):
        plain = dict(zip((parameter.name for parameter in own), values, strict=True))
        yield plain
        if a.pipelined:
            yield plain | {SEGMENT_BYTES.name: SEGMENT_BYTES.choices[-1], SLOTS.name: SLOTS.choices[0]}


def row(a: Algorithm, p: int, nodes: Nodes | None, root: int | None, params: dict[str, Any]) -> dict[str, Any]:
    case = {"collective": a.collective, "algorithm": a.name, "ranks": p, "nodes": nodes, "root": root, "params": params}
    segments = params.get(SLOTS.name, 0) + 1
    try:
        schedules = a.schedules(p, nodes=nodes, root=root or 0, **params)
        r = verify(schedules, contract(a.collective, p, root or 0), segments)
    except Fault as fault:
        nothing = dict.fromkeys(("rounds", "bytes_sent", "order", "hash"))
        return case | {"ok": False, "error": str(fault)} | nothing
    cost = {"rounds": r.rounds, "bytes_sent": float(r.sent), "order": "fixed" if r.canonical else "any", "hash": r.hash}
    return case | {"ok": True, "error": None} | cost
