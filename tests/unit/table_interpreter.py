"""Interpreter of lowered tables: all ranks' tables on numbers, in one process; messages move when they please.

It shares with the executor only the words of layout.py. Memory maps intervals of bytes to numbers, so that a message
of gigabytes costs no more than its pieces. Every byte begins undefined; a slot's memory is undefined again when a
segment begins. MPI's messages may be taken from memory when sent, or at any time until both ends are posted.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from collectives import layout as at
from collectives.proof.reference import Wrong, combine
from collectives.schedule import SCRATCH
from tests.unit.table_memory import Memory, Owner, Parts, beside

FIFO_LANES, FIFO_SLOTS, FIFO_DEPTH = 2, 4, 2
FOREVER = 20_000  # passes over all ranks


class Row:
    """A row of a round, posted."""

    def __init__(self, words: Sequence[int], segment: int, piece: int):
        self.words, self.piece = words, piece
        if segment < words[at.FULL]:
            self.n, self.base = words[at.LENGTH], words[at.OFFSET] + segment * words[at.STRIDE]
        elif segment == words[at.FULL]:
            self.n, self.base = words[at.TAIL_LENGTH], words[at.TAIL_OFFSET]
        else:
            self.n, self.base = 0, 0
        self.pieces = -(-self.n // piece)
        self.issued = self.finished = self.ticket = 0
        self.complete: set[int] = set()
        self.fifo: Fifo | None = None

    @property
    def over(self) -> bool:
        return self.finished == self.pieces

    @property
    def queue(self) -> Fifo:
        if self.fifo is None:
            raise Wrong("a message by shared memory that was posted otherwise")
        return self.fifo

    def length(self, k: int) -> int:
        return min(self.piece, self.n - k * self.piece)


@dataclass
class Fifo:
    """Both ends of a FIFO: what each has promised to messages, and how far it has come."""

    reserved: list[int] = field(default_factory=lambda: [0, 0])
    cursor: list[int] = field(default_factory=lambda: [0, 0])
    inside: deque[Parts] = field(default_factory=deque)


class Piece(NamedTuple):
    """One end of a piece that MPI carries."""

    row: Row
    k: int
    take: Callable[[], Parts]
    land: Callable[[Parts], None]


@dataclass
class Pair:
    """MPI's messages of one pair and tag; a send that was buffered has left its contents."""

    sends: deque[tuple[Piece, Parts | None]] = field(default_factory=deque)
    receives: deque[Piece] = field(default_factory=deque)


class Slot:
    """One slot of a lane, on one rank."""

    def __init__(self, rank: Rank, lane: int, slot: int):
        self.rank, self.slot = rank, slot
        self.lane = rank.line(at.LANES, lane, at.LANE_WORDS)
        self.number = lane
        self.segment, self.round = slot, 0
        self.rows: list[Row] = []

    @property
    def over(self) -> bool:
        return self.segment >= self.lane[at.SEGMENTS]

    def owner(self, buffer: int) -> Owner:
        return (self.number, self.slot, self.segment) if buffer == at.SLOT else None

    def post(self) -> None:
        rank, lane = self.rank, self.lane
        _, count, *_ = first = rank.line(at.ROUNDS, lane[at.FIRST_ROUND] + self.round, at.ROUND_WORDS)
        for k in range(count):
            words = rank.line(at.ROWS, first[at.FIRST_ROW] + k, at.ROW_WORDS)
            row = Row(words, self.segment, rank.words[at.PIECE_BYTES])
            if row.n % rank.machine.itemsize or row.base % rank.machine.itemsize:
                raise Wrong("a place that is no whole number of elements")
            self.rows.append(row)
            if words[at.KIND] != at.FOLD and words[at.LINK] == at.SHARED_MEMORY:
                row.fifo, end = self.fifo(row), int(words[at.KIND] == at.RECV)
                row.ticket = row.fifo.reserved[end]
                row.fifo.reserved[end] += row.pieces
        for k in range(len(self.rows)):
            self.issue(k)

    def fifo(self, row: Row) -> Fifo:
        machine, peer = self.rank.machine, self.rank.node[row.words[at.FIFO]]
        if self.lane[at.CHANNEL] >= FIFO_LANES or self.slot >= FIFO_SLOTS:
            raise Wrong("a FIFO that does not exist")
        ends = (self.rank.me, peer) if row.words[at.KIND] == at.SEND else (peer, self.rank.me)
        return machine.fifos[*ends, self.lane[at.CHANNEL], self.slot]

    # ------------------------------------------------------------ where a row's pieces lie
    def read(self, row: Row, k: int) -> Parts:
        """Piece k of what lies in the row's own place."""
        return self.rank.read(self, row.words[at.BUFFER], self.place(row) + k * row.piece, row.length(k))

    def place(self, row: Row) -> int:
        return row.base + self.slot * row.words[at.SLOT_STRIDE]

    def landing(self, row: Row, k: int) -> tuple[int, int]:
        """Buffer and offset where piece k of a receive is put."""
        words, apart = row.words, self.slot * row.words[at.SLOT_STRIDE]
        match words[at.LANDING]:
            case at.PLAIN:
                return words[at.BUFFER], row.base + apart + k * row.piece
            case at.STREAMED:
                return at.SLOT, words[at.STAGE] + apart + (k & 1) * row.piece
            case at.WHOLE:
                return at.SLOT, words[at.STAGE] + apart + k * row.piece
        raise Wrong("a landing that does not exist")

    def land(self, row: Row, k: int, parts: Parts) -> None:
        if sum(length for length, _ in parts) != row.length(k):
            raise Wrong("the two ends of a message differ in length")
        buffer, place = self.landing(row, k)
        self.rank.write(self, buffer, place, parts)

    # ------------------------------------------------------------ MPI
    def issue(self, k: int) -> None:
        """Two pieces in flight for each message, messages of a pair in the order of their rows."""
        row = self.rows[k]
        words = row.words
        if words[at.KIND] == at.FOLD or words[at.LINK] != at.MPI:
            return
        if before := words[at.PREVIOUS]:
            earlier = self.rows[k - before]
            if earlier.issued < earlier.pieces:
                return
        machine, me, tag = self.rank.machine, self.rank.me, (self.lane[at.CHANNEL], self.slot)
        while row.issued < row.pieces and row.issued - row.finished < 2:
            j = row.issued
            piece = Piece(row, j, lambda j=j: self.read(row, j), lambda parts, j=j: self.land(row, j, parts))  # type: ignore[misc]
            if words[at.KIND] == at.SEND:
                buffered = piece.take() if machine.random.random() < 0.3 else None
                if buffered is not None:
                    row.complete.add(j)
                machine.pairs[me, words[at.PEER], *tag].sends.append((piece, buffered))
            else:
                machine.pairs[words[at.PEER], me, *tag].receives.append(piece)
            row.issued += 1

    # ------------------------------------------------------------ moving
    def advance(self) -> bool:
        if self.over:
            return False
        if not self.rows:
            self.post()
        order = list(range(len(self.rows)))
        if self.rank.machine.random.random() < 0.5:
            self.rank.machine.random.shuffle(order)
        moved = [self.advance_row(k) for k in order if not self.rows[k].over]
        if all(row.over for row in self.rows):
            self.rows = []
            self.round += 1
            if self.round == self.lane[at.N_ROUNDS]:
                self.round = 0
                self.segment += self.lane[at.SLOTS]
            return True
        return any(moved)

    def advance_row(self, k: int) -> bool:
        row = self.rows[k]
        words, before = row.words, row.finished
        if words[at.KIND] == at.FOLD:
            return self.fold(row)
        if words[at.KIND] == at.RECV and words[at.LANDING] == at.STREAMED:
            return False  # its fold takes the pieces
        if words[at.LINK] == at.MPI:
            if row.finished in row.complete:
                row.finished += 1
            self.issue(k)
        elif words[at.KIND] == at.SEND:
            if row.queue.cursor[0] == row.ticket + row.finished and len(row.queue.inside) < FIFO_DEPTH:
                row.queue.inside.append(self.read(row, row.finished))
                row.queue.cursor[0] += 1
                row.finished += 1
        elif self.in_fifo(row):
            self.land(row, row.finished, self.pop(row))
        return row.finished > before

    def in_fifo(self, row: Row) -> bool:
        return bool(row.queue.inside) and row.queue.cursor[1] == row.ticket + row.finished

    def pop(self, row: Row) -> Parts:
        parts = row.queue.inside.popleft()
        if sum(length for length, _ in parts) != row.length(row.finished):
            raise Wrong("the two ends of a message differ in length")
        row.queue.cursor[1] += 1
        row.finished += 1
        return parts

    def fold(self, row: Row) -> bool:
        """One n-ary reduction of a piece."""
        words, done, rank = row.words, row.finished, self.rank
        streams = words[at.STREAM]
        for sent in self.rows[words[at.AFTER] : words[at.END_AFTER]]:
            if not sent.over and (sent.finished <= done or not streams):
                return False
        terms = [rank.line(at.TERMS, words[at.FIRST_TERM] + j, at.TERM_WORDS) for j in range(words[at.TERM_COUNT])]
        sources = {term[at.TERM_ROW]: self.rows[term[at.TERM_ROW]] for term in terms if term[at.TERM_ROW] != at.OWN}
        for source in sources.values():
            here = self.in_fifo(source) if source.words[at.LINK] == at.SHARED_MEMORY else done in source.complete
            if not (here if streams else source.over):
                return False
        n = row.length(done)
        operands = [self.operand(row, term, sources, done, n) for term in terms]
        weights = rank.weights(words)
        if rank.machine.notes is not None:
            rank.machine.notes[rank.me][words[at.FIRST_TERM] : words[at.FIRST_TERM] + words[at.TERM_COUNT]] = [
                parts[0][1].weight for parts in operands
            ]
            weights = [parts[0][1].weight for parts in operands]
        result = [(length, combine(values, weights)) for length, values in beside(operands)]
        for k, source in sources.items() if streams else ():
            if source.words[at.LINK] != at.SHARED_MEMORY:
                source.finished += 1
                self.issue(k)
        rank.write(self, words[at.BUFFER], self.place(row) + done * row.piece, result)
        row.finished += 1
        return True

    def operand(self, row: Row, term: Sequence[int], sources: dict[int, Row], done: int, n: int) -> Parts:
        if term[at.TERM_ROW] == at.OWN:
            place = term[at.TERM_TAIL_OFFSET]
            if self.segment < row.words[at.FULL]:
                place = term[at.TERM_OFFSET] + self.segment * term[at.TERM_STRIDE]
            place += self.slot * term[at.TERM_SLOT_STRIDE] + done * row.piece
            return self.rank.read(self, term[at.TERM_BUFFER], place, n)
        source = sources[term[at.TERM_ROW]]
        if row.words[at.STREAM] and source.words[at.LINK] == at.SHARED_MEMORY:
            return self.pop(source)
        if source.words[at.LANDING] == at.PLAIN:
            raise Wrong("a fold of what has landed elsewhere")
        return self.rank.read(self, *self.landing(source, done), n)


class Rank:
    """One rank: its table, its memory, and the slots of its phase."""

    def __init__(self, machine: Machine, me: int, node: Sequence[int], words: Sequence[int], memory: list[Memory]):
        self.machine, self.me, self.node, self.words = machine, me, node, words
        self.memory = memory
        self.phase, self.live = -1, list[Slot]()
        self.next_phase()

    def line(self, section: int, index: int, width: int) -> Sequence[int]:
        start = self.words[section] + index * width
        if index < 0 or start + width > len(self.words):
            raise Wrong("a line outside the table")
        return self.words[start : start + width]

    def weights(self, row: Sequence[int]) -> Sequence[int]:
        start = self.words[at.WEIGHTS] + row[at.FIRST_TERM]
        return self.words[start : start + row[at.TERM_COUNT]]

    def next_phase(self) -> None:
        while not self.live and self.phase < self.words[at.N_PHASES]:
            self.phase += 1
            if self.phase < self.words[at.N_PHASES]:
                phase = self.line(at.PHASES, self.phase, at.PHASE_WORDS)
                lanes = range(phase[at.FIRST_LANE], phase[at.END_LANE])
                slots = [(n, self.line(at.LANES, n, at.LANE_WORDS)[at.SLOTS]) for n in lanes]
                made = [Slot(self, n, slot) for n, count in slots for slot in range(count)]
                self.live = [slot for slot in made if not slot.over]

    def read(self, slot: Slot, buffer: int, place: int, n: int) -> Parts:
        return self.buffer(buffer).read(place, n, slot.owner(buffer))

    def write(self, slot: Slot, buffer: int, place: int, parts: Parts) -> None:
        self.buffer(buffer).write(place, parts, slot.owner(buffer))

    def buffer(self, index: int) -> Memory:
        if not 0 <= index < len(self.memory):
            raise Wrong("a buffer that does not exist")
        return self.memory[index]

    def advance(self) -> bool:
        random, moved = self.machine.random, False
        for slot in random.sample(self.live, len(self.live)):
            moved |= slot.advance()
        self.live = [slot for slot in self.live if not slot.over]
        self.next_phase()
        return moved


class Machine:
    """All ranks, and what is between them. `note`: weights are not read from the tables, but noted."""

    def __init__(
        self,
        tables: Sequence[Sequence[int]],
        memories: list[dict[str, Memory]],
        nodes: Sequence[Sequence[int]],
        itemsize: int,
        seed: int,
        note: bool = False,
    ):
        self.itemsize, self.random = itemsize, Random(seed)
        self.fifos: dict[tuple[int, ...], Fifo] = defaultdict(Fifo)
        self.pairs: dict[tuple[int, ...], Pair] = defaultdict(Pair)
        self.notes = [[0] * len(words) for words in tables] if note else None
        self.ranks = []
        for me, words in enumerate(tables):
            for name, index in ((SCRATCH, at.SCRATCH_BYTES), ("slot", at.SLOT_BYTES)):
                memories[me][name] = Memory(words[index])
            memory = [memories[me].get(name, Memory(0)) for name in at.BUFFERS]
            node = next(node for node in nodes if me in node)
            self.ranks.append(Rank(self, me, node, words, memory))

    def carry(self, pair: Pair) -> bool:
        """MPI brings a message over."""
        if not pair.sends or not pair.receives:
            return False
        (piece, buffered), there = pair.sends.popleft(), pair.receives.popleft()
        there.land(piece.take() if buffered is None else buffered)
        piece.row.complete.add(piece.k)
        there.row.complete.add(there.k)
        return True

    def run(self) -> None:
        for _ in range(FOREVER):
            some = self.random.random() < 0.9
            moved = False
            for rank in self.random.sample(self.ranks, len(self.ranks)):
                if not some or self.random.random() < 0.7:
                    moved |= rank.advance()
            for pair in list(self.pairs.values()):
                if not some or self.random.random() < 0.7:
                    moved |= self.carry(pair)
            if not any(rank.live for rank in self.ranks):
                break
            if not moved and not some:
                raise Wrong("nobody moves")
        else:
            raise Wrong("it does not end")
        fifos = any(fifo.inside for fifo in self.fifos.values())
        if fifos or any(pair.sends or pair.receives for pair in self.pairs.values()):
            raise Wrong("messages are left over")
