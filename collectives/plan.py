"""Lowering: one rank's schedule becomes a table of integers (layout.py), for a count, a dtype's size and links.

Only here do fractions become elements, by one monotone function that all ranks share: so both ends of a message agree,
also when the count is smaller than the number of chunks. Messages of no elements are left out, at both ends alike.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from collectives import layout as at
from collectives.extents import Bound, Extent, Packed, Private, aligned, extents, overlap, scratch_spans
from collectives.schedule import RECV, RECV_REDUCE, SCRATCH, SEND, Lane, Schedule, Span, Step, folds

LARGEST_OFFSET = 1 << 62


@dataclass(frozen=True)
class Target:
    """What a schedule is lowered for. `link` and `fifo` take a peer's rank; `fifo` names its place in the node."""

    itemsize: int
    bound: Bound
    holds: dict[str, list[Span]]  # what each of the caller's buffers holds, packed in order
    link: Callable[[int], int] = lambda _: at.MPI
    fifo: Callable[[int], int] = lambda _: 0
    fifo_lanes: int = 0  # lanes past these, and pipelines of more slots, have no FIFO: their messages go by MPI
    fifo_slots: int = 1
    segment_bytes: int | None = None
    piece_bytes: int = 1 << 17  # longest part of a message that travels at once: the same on all ranks
    weights: Sequence[int] | None = None  # of every term of the schedule, in order; None: all 1
    # Node kernels that are tried before a phase, by its index, as of a list.
    stand_ins: "Mapping[int, Kernel]" = field(default_factory=dict)


class Place:
    """Where a span lies for segment k: offset + k * stride for the first `full` ones, then `tail`; in bytes."""

    __slots__ = ("buffer", "offset", "stride", "tail_offset")

    def __init__(self, buffer: int, offset: int, stride: int, tail_offset: int):
        self.buffer, self.offset, self.stride, self.tail_offset = buffer, offset, stride, tail_offset


@dataclass
class Table:
    """A lowered schedule. `words` is what runs; the rest is for whoever asks."""

    words: list[int]
    n_rows: int
    messages: int  # sends a segment, of this rank
    weights_at: int  # in words
    terms: int  # of the schedule, whether or not they have elements here
    fused: bool = False  # its first row, at least, is a node kernel


@dataclass
class Sections:
    """A table's rows, section by section."""

    phases: list[list[int]] = field(default_factory=list)
    lanes: list[list[int]] = field(default_factory=list)
    rounds: list[list[int]] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=list)
    terms: list[list[int]] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    instances: int = 0  # slots of lanes


def lower(schedule: Schedule, target: Target, before: Sections | None = None) -> Table:
    """The table of one rank; `before` holds phases that come first.

    Raises ValueError where an offset would pass 2^62 bytes or a lane's number 63.
    """
    return _Lowering(schedule, target, before or Sections()).table()


@dataclass(frozen=True)
class Kernel:
    """A node kernel and what it does (native/staged.py). `owner` and `taker` are ranks, EVERYONE or NOBODY."""

    function: int
    gives: bool = False
    owner: int = at.EVERYONE
    taker: int = at.EVERYONE
    unit: int = at.LINE  # bytes that a chunk is a whole number of
    chunk: tuple[int, int] = (0, 0)  # where mine begins and how long it is, in bytes, of a kernel that is told
    terms: int = 0  # addresses that it needs room for
    piece_bytes: int = at.LINE  # what it cuts the message into


def kernel_phase(found: Sections, kernel: Kernel, n_bytes: int) -> None:
    """Add a phase of one row, a node kernel's; none for no bytes."""
    if n_bytes:
        row = [0] * at.ROW_WORDS
        row[at.KIND], row[at.LENGTH], row[at.FULL], row[at.FUNCTION] = at.FUSED, n_bytes, 1, kernel.function
        row[at.KERNEL_PIECE] = kernel.piece_bytes
        row[at.FIRST_TERM], row[at.TERM_COUNT] = len(found.terms), kernel.terms
        row[at.GIVES], row[at.OWNER], row[at.TAKER] = kernel.gives, kernel.owner, kernel.taker
        row[at.UNIT], row[at.PEER] = kernel.unit, -1
        row[at.OFFSET], row[at.CHUNK_BYTES] = kernel.chunk
        found.phases.append([len(found.lanes), len(found.lanes) + 1])
        found.lanes.append([1, 1, 1, len(found.rounds), found.instances, 0, 0, 0])
        found.rounds.append([len(found.rows), 1, 0, 0])
        found.rows.append(row)
        found.terms += [[at.OWN] + [0] * (at.TERM_WORDS - 1)] * kernel.terms
        found.weights += [1] * kernel.terms
        found.instances += 1


def kernel_table(found: Sections) -> Table:
    """The table of kernel phases alone."""
    words = build(found, piece_bytes=at.LINE, scratch_bytes=0, slot_bytes=0)
    return Table(words, len(found.rows), 0, words[at.WEIGHTS], len(found.terms), fused=True)


@dataclass
class _Lowering:
    schedule: Schedule
    target: Target
    sections: Sections
    seen_terms: int = 0
    slot_bytes: int = 0

    def table(self) -> Table:
        t = self.target
        plain = [lane for phase in self.schedule.phases for lane in phase.lanes.values() if not lane.cells]
        shared = scratch_spans(plain)
        self.home = {name: Packed(spans, t.bound) for name, spans in (t.holds | {SCRATCH: shared}).items()}
        self.piece = max(at.LINE, min(t.piece_bytes, aligned(t.bound.offsets[-1] * t.itemsize)))
        for place, phase in enumerate(self.schedule.phases):
            stand_in = self._stand_in(place) or self._stand_in(place - len(self.schedule.phases))
            first, base = len(self.sections.lanes), 0
            for number, lane in phase.lanes.items():
                base += self._lane(number, lane, base)
            self.slot_bytes = max(self.slot_bytes, base)
            if len(self.sections.lanes) > first:
                self.sections.phases.append([first, len(self.sections.lanes)])
                if stand_in is not None:
                    stand_in[at.STANDS_FOR] = 1
        scratch_bytes = aligned(self.home[SCRATCH].length * t.itemsize)
        words = build(self.sections, self.piece, scratch_bytes, self.slot_bytes)
        messages = sum(row[at.KIND] == at.SEND for row in self.sections.rows)
        fused = any(row[at.KIND] == at.FUSED for row in self.sections.rows[:1])
        return Table(words, len(self.sections.rows), messages, words[at.WEIGHTS], self.seen_terms, fused)

    def _stand_in(self, phase: int) -> list[int] | None:
        """Adds the node kernel that is tried before a phase of the schedule, if there is one; returns its row."""
        kernel, n_bytes = self.target.stand_ins.get(phase), self.target.bound.offsets[-1] * self.target.itemsize
        if kernel is None or not n_bytes:
            return None
        kernel_phase(self.sections, kernel, n_bytes)
        return self.sections.rows[-1]

    # ------------------------------------------------------------ spans to places
    def _extents(self, lane: Lane) -> dict[Span, Extent]:
        wanted = self.target.segment_bytes
        return extents(lane, self.target.bound, max(1, wanted // self.target.itemsize) if wanted else None)

    def _place(self, buffer: str, span: Span, found: dict[Span, Extent], private: "Private | None") -> Place:
        size, e = self.target.itemsize, found[span]
        if private is not None and buffer == SCRATCH:
            offset, tail = private.offsets(span, size, found)
            return Place(at.SLOT, offset, 0, tail)
        start, piece = self.home[buffer].find(span)
        origin = start + e.start - self.target.bound(piece.lo)
        tail = origin + e.full * e.step + e.tail_lo
        return Place(at.BUFFERS.index(buffer), (origin + e.lo) * size, e.step * size, tail * size)

    # ------------------------------------------------------------ lanes and rounds
    def _lane(self, number: int, lane: Lane, base: int) -> int:
        """Adds a lane whose slots' memory begins at `base`; returns the bytes of it."""
        if not 0 <= number < at.MAX_LANES:
            raise ValueError(f"lane {number}: lanes are numbered 0 to {at.MAX_LANES - 1}")
        if lane.slots > at.MAX_SLOTS:
            raise ValueError(f"{lane.slots} slots: a pipeline has at most {at.MAX_SLOTS}")
        size, found = self.target.itemsize, self._extents(lane)
        segments = max((e.full + (e.tail > 0) for e in found.values()), default=1) if lane.cells else 1
        slots = min(lane.slots, max(1, segments))
        private = Private(lane, found, size, base) if lane.cells else None
        floor = private.bytes if private else 0
        made, most = self.sections, floor
        first_round, first_row, first_term = len(made.rounds), len(made.rows), len(made.terms)
        for index, steps in enumerate(lane.rounds):
            most = max(most, self._round(number, lane.slots, index, steps, found, private, base, floor))
        stride = aligned(most)
        if len(made.rounds) == first_round:
            return 0
        for row in made.rows[first_row:]:
            if row[at.BUFFER] == at.SLOT or row[at.LANDING]:
                row[at.SLOT_STRIDE] = stride
        for term in made.terms[first_term:]:
            if term[at.TERM_BUFFER] == at.SLOT:
                term[at.TERM_SLOT_STRIDE] = stride
        made.lanes.append([len(made.rounds) - first_round, segments, slots, first_round, made.instances, number, 0, 0])
        made.instances += slots
        return stride * slots

    def _round(
        self,
        lane: int,
        slots: int,
        number: int,
        steps: tuple[Step, ...],
        found: dict[Span, Extent],
        private: "Private | None",
        base: int,
        top: int,
    ) -> int:
        """Adds a round; returns the bytes of the slot's memory that it needs."""
        t, first = self.target, len(self.sections.rows)
        local = folds(steps)
        channels = [(s.peer, s.kind == SEND) for s in steps if s.peer is not None]
        streams = len(set(channels)) == len(channels) and all(
            s.span == span or s.buffer != buffer or not overlap(s.span, span)
            for (_, buffer, span, _) in local
            for s in steps
            if s.kind == SEND
        )
        receives = [s for s in steps if s.kind in (RECV, RECV_REDUCE)]
        sends = [s for s in steps if s.kind == SEND]
        if streams:  # those that read what a fold overwrites lie together
            sends.sort(key=lambda s: (s.buffer, s.span))
        by_mpi = any(self._link(s.peer, lane, slots) == at.MPI for s in receives if s.peer is not None)
        ordered = [s for s in (receives + sends if by_mpi else sends + receives) if self._any(s.span, found)]
        index: dict[Step, int] = {}
        last: dict[tuple[int | None, bool], int] = {}
        numbers = {s: i for i, s in enumerate(steps)}
        for s in ordered:
            assert s.peer is not None
            row = self._row(at.SEND if s.kind == SEND else at.RECV, s.span, found, s.buffer, private)
            position = len(self.sections.rows) - first
            row[at.PEER], row[at.LINK], row[at.STEP] = s.peer, self._link(s.peer, lane, slots), numbers[s]
            row[at.FIFO] = t.fifo(s.peer) if row[at.LINK] == at.SHARED_MEMORY else -1
            if s.kind == RECV_REDUCE:
                row[at.LANDING], row[at.STAGE] = at.STREAMED if streams else at.WHOLE, base + top
                top += self._landing_bytes(row, found[s.span])
            before = last.get((s.peer, s.kind == SEND))
            row[at.PREVIOUS] = position - before if before is not None else 0
            last[s.peer, s.kind == SEND] = position
            index[s] = position
            self.sections.rows.append(row)
        pacer = next((i for s, i in index.items() if s.kind != SEND), None)
        for s, i in index.items():
            if s.kind == SEND and pacer is not None:
                self.sections.rows[first + i][at.PACE] = pacer - i
        for (_, buffer, span, own), operands in local.items():
            self._fold(buffer, span, own, operands, found, private, index, first, streams)
        if len(self.sections.rows) > first:
            self.sections.rounds.append([first, len(self.sections.rows) - first, number, 0])
        return top

    def _landing_bytes(self, row: list[int], extent: Extent) -> int:
        if row[at.LANDING] == at.STREAMED:
            return 2 * self.piece if row[at.LINK] == at.MPI else 0
        return aligned(max(extent.length, extent.tail) * self.target.itemsize)

    def _fold(
        self,
        buffer: str,
        span: Span,
        own: str | None,
        operands: Sequence[Step | None],
        found: dict[Span, Extent],
        private: "Private | None",
        index: dict[Step, int],
        first: int,
        streams: bool,
    ) -> None:
        numbers = range(self.seen_terms, self.seen_terms + len(operands))
        self.seen_terms += len(operands)
        if not self._any(span, found):
            return
        row = self._row(at.FOLD, span, found, buffer, private)
        row[at.FIRST_TERM], row[at.TERM_COUNT], row[at.STREAM] = len(self.sections.terms), len(operands), streams
        after = [i for s, i in index.items() if s.kind == SEND and s.buffer == buffer and overlap(s.span, span)]
        if after:
            row[at.AFTER], row[at.END_AFTER] = min(after), max(after) + 1
        row[at.LINK] = next((self.sections.rows[first + index[s]][at.LINK] for s in operands if s is not None), 0)
        self.sections.rows.append(row)
        for number, s in zip(numbers, operands, strict=True):
            if s is None:
                p = self._place(own or buffer, span, found, private)
                term = [at.OWN, p.buffer, p.offset, p.stride, p.tail_offset]
            else:
                term = [index[s]]
            self.sections.terms.append(term + [0] * (at.TERM_WORDS - len(term)))
            self.sections.weights.append(self.target.weights[number] if self.target.weights is not None else 1)

    def _row(
        self, kind: int, span: Span, found: dict[Span, Extent], buffer: str, private: "Private | None"
    ) -> list[int]:
        place, e, size = self._place(buffer, span, found, private), found[span], self.target.itemsize
        row = [0] * at.ROW_WORDS
        row[at.KIND], row[at.BUFFER], row[at.OFFSET], row[at.STRIDE] = kind, place.buffer, place.offset, place.stride
        row[at.LENGTH], row[at.FULL] = e.length * size, e.full
        row[at.TAIL_OFFSET], row[at.TAIL_LENGTH] = place.tail_offset, e.tail * size
        if max(place.offset + e.full * place.stride, place.tail_offset) > LARGEST_OFFSET:
            raise ValueError(f"an offset passes {LARGEST_OFFSET} bytes: the message is too long")
        return row

    def _any(self, span: Span, found: dict[Span, Extent]) -> bool:
        e = found[span]
        return (e.length > 0 and e.full > 0) or e.tail > 0

    def _link(self, peer: int | None, lane: int, slots: int) -> int:
        assert peer is not None
        t = self.target
        return t.link(peer) if lane < t.fifo_lanes and slots <= t.fifo_slots else at.MPI


def build(found: Sections, piece_bytes: int, scratch_bytes: int, slot_bytes: int) -> list[int]:
    """The words of a table: its header, then its sections."""
    words = [0] * at.HEADER
    words[at.N_PHASES], words[at.INSTANCES] = len(found.phases), found.instances
    widest = max((r[at.ROW_COUNT] for r in found.rounds), default=0)
    words[at.INSTANCE_WORDS] = at.INSTANCE_HEADER + widest * at.ROW_STATE_WORDS
    words[at.MOST_TERMS] = max((row[at.TERM_COUNT] for row in found.rows), default=0)
    words[at.SCRATCH_BYTES], words[at.SLOT_BYTES], words[at.PIECE_BYTES] = scratch_bytes, slot_bytes, piece_bytes
    sections: tuple[tuple[int, Iterable[Sequence[int]]], ...] = (
        (at.PHASES, found.phases),
        (at.LANES, found.lanes),
        (at.ROUNDS, found.rounds),
        (at.ROWS, found.rows),
        (at.TERMS, found.terms),
        (at.WEIGHTS, [found.weights]),
    )
    for section, lines in sections:
        words += [0] * (-len(words) % 8)  # sections begin on a cache line
        words[section] = len(words)
        for line in lines:
            words += line
    words[at.WORDS] = len(words)
    return words
