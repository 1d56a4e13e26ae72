"""Lowering: one rank's schedule becomes a table of integers (layout.py), for a count, a dtype's size and links.

Only here do fractions become elements, by one monotone function that all ranks share: so both ends of a message agree,
also when the count is smaller than the number of chunks. Messages of no elements are left out, at both ends alike.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from collectives import layout as at
from collectives.schedule import INPUT, OUTPUT, RECV, RECV_REDUCE, SCRATCH, SEND, Lane, Schedule, Span, Step, folds

LARGEST_OFFSET = 1 << 62


def chunk_offsets(count: int, parts: int) -> list[int]:
    """Where `parts` chunks of `count` elements begin and end, as torch.tensor_split cuts them: parts + 1 offsets."""
    return [i * (count // parts) + min(i, count % parts) for i in range(parts + 1)]


def aligned_part(length: int, part: Fraction, align: int) -> int:
    """`part` of `length`, rounded up to `align`, but never past the end: 0 at 0, `length` at 1, and monotone."""
    return min(length, -(-length * part.numerator // (part.denominator * align)) * align)


class Bound:
    """Fractions of the message to elements: i/n to offsets[i] of n + 1, and aligned in between."""

    def __init__(self, offsets: Sequence[int], align: int = 1):
        self.offsets, self.align = tuple(offsets), align
        self._known: dict[Fraction, int] = {}

    def __call__(self, x: Fraction) -> int:
        found = self._known.get(x)
        if found is None:
            i, rest = divmod(x * (len(self.offsets) - 1), 1)
            found = self.offsets[i]
            if rest:
                found += aligned_part(self.offsets[i + 1] - found, rest, self.align)
            self._known[x] = found
        return found

    def length(self, span: Span) -> int:
        return self(span.hi) - self(span.lo)


@dataclass(frozen=True)
class Target:
    """What a schedule is lowered for. `link` and `fifo` take a peer's rank; `fifo` names its place in the node."""

    itemsize: int
    bound: Bound
    holds: Mapping[str, Sequence[Span]]  # what each of the caller's buffers holds, packed in order
    link: Callable[[int], int] = lambda peer: at.MPI
    fifo: Callable[[int], int] = lambda peer: 0
    fifo_lanes: int = 0  # lanes past these, and pipelines of more slots, have no FIFO: their messages go by MPI
    fifo_slots: int = 1
    segment_bytes: int | None = None
    piece_bytes: int = 1 << 17  # longest part of a message that travels at once: the same on all ranks
    weights: Sequence[int] | None = None  # of every term of the schedule, in order; None: all 1


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


@dataclass
class Extent:
    """How many elements a span has in each full segment of its cell, in the tail, and where they begin."""

    lo: int
    hi: int
    tail_lo: int
    tail_hi: int
    start: int  # of the cell, in elements of the message
    step: int  # of a segment
    full: int

    @property
    def length(self) -> int:
        return self.hi - self.lo

    @property
    def tail(self) -> int:
        return self.tail_hi - self.tail_lo


def lower(schedule: Schedule, target: Target) -> Table:
    """The table of one rank. Raises ValueError where an offset would pass 2^62 bytes or a lane's number 63."""
    return _Lowering(schedule, target).table()


@dataclass
class _Lowering:
    schedule: Schedule
    target: Target
    phases: list[list[int]] = field(default_factory=list)
    lanes: list[list[int]] = field(default_factory=list)
    rounds: list[list[int]] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=list)
    terms: list[list[int]] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    seen_terms: int = 0
    instances: int = 0
    slot_bytes: int = 0

    def table(self) -> Table:
        t = self.target
        plain = [lane for phase in self.schedule.phases for lane in phase.lanes.values() if not lane.cells]
        shared = scratch_spans(plain)
        self.home = {name: pack(spans, t.bound.length) for name, spans in t.holds.items()}
        self.home[SCRATCH] = pack(shared, t.bound.length)
        scratch_elements = sum(map(t.bound.length, shared))
        self.piece = max(at.LINE, min(t.piece_bytes, aligned(t.bound.offsets[-1] * t.itemsize)))
        for phase in self.schedule.phases:
            first, base = len(self.lanes), 0
            for number, lane in phase.lanes.items():
                base += self._lane(number, lane, base)
            self.slot_bytes = max(self.slot_bytes, base)
            if len(self.lanes) > first:
                self.phases.append([first, len(self.lanes)])
        return self._build(scratch_elements * t.itemsize)

    # ------------------------------------------------------------ spans to elements
    def _extents(self, lane: Lane) -> dict[Span, Extent]:
        """Of every span that the lane's steps name."""
        bound = self.target.bound
        if not lane.cells:
            return {x: Extent(0, bound.length(x), 0, 0, bound(x.lo), 0, 1) for x in lane.spans()}
        wanted = self.target.segment_bytes or LARGEST_OFFSET
        segment = max(1, wanted // self.target.itemsize)
        n = max(1, *(-(-bound.length(cell) // segment) for cell in lane.cells))
        found = {}
        for x in lane.spans():
            cell = lane.cell(x)
            length, part = bound.length(cell), [(end - cell.lo) / cell.size for end in x]
            step = max(1, -(-length // (n * bound.align)) * bound.align)
            full = length // step
            inner = [aligned_part(step, end, bound.align) for end in part]
            tail = [aligned_part(length - full * step, end, bound.align) for end in part]
            found[x] = Extent(*inner, *tail, bound(cell.lo), step, full)
        return found

    def _place(self, buffer: str, span: Span, extents: dict[Span, Extent], private: "_Private | None") -> Place:
        size, e = self.target.itemsize, extents[span]
        if private is not None and buffer == SCRATCH:
            offset, tail = private.offsets(span, size, extents)
            return Place(at.SLOT, offset, 0, tail)
        start, piece = next((home, x) for x, home in self.home[buffer].items() if x.lo <= span.lo and span.hi <= x.hi)
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
        size, extents = self.target.itemsize, self._extents(lane)
        segments = max((e.full + (e.tail > 0) for e in extents.values()), default=1) if lane.cells else 1
        slots = min(lane.slots, max(1, segments))
        private = _Private(lane, extents, size, base) if lane.cells else None
        floor = private.bytes if private else 0
        first_round, first_row, first_term, most = len(self.rounds), len(self.rows), len(self.terms), floor
        for index, steps in enumerate(lane.rounds):
            most = max(most, self._round(number, lane.slots, index, steps, extents, private, base, floor))
        stride = aligned(most)
        if len(self.rounds) == first_round:
            return 0
        for row in self.rows[first_row:]:
            if row[at.BUFFER] == at.SLOT or row[at.LANDING]:
                row[at.SLOT_STRIDE] = stride
        for term in self.terms[first_term:]:
            if term[at.TERM_BUFFER] == at.SLOT:
                term[at.TERM_SLOT_STRIDE] = stride
        self.lanes.append([len(self.rounds) - first_round, segments, slots, first_round, self.instances, number, 0, 0])
        self.instances += slots
        return stride * slots

    def _round(
        self,
        lane: int,
        slots: int,
        number: int,
        steps: tuple[Step, ...],
        extents: dict[Span, Extent],
        private: "_Private | None",
        base: int,
        top: int,
    ) -> int:
        """Adds a round; returns the bytes of the slot's memory that it needs."""
        t, size, first = self.target, self.target.itemsize, len(self.rows)
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
        ordered = [s for s in (receives + sends if by_mpi else sends + receives) if self._any(s.span, extents)]
        index: dict[Step, int] = {}
        last: dict[tuple[int | None, bool], int] = {}
        for step_number, s in ((steps.index(s), s) for s in ordered):
            assert s.peer is not None
            row = self._row(at.SEND if s.kind == SEND else at.RECV, s.span, extents, s.buffer, private)
            position = len(self.rows) - first
            row[at.PEER], row[at.LINK], row[at.STEP] = s.peer, self._link(s.peer, lane, slots), step_number
            row[at.FIFO] = t.fifo(s.peer) if row[at.LINK] == at.SHARED_MEMORY else -1
            if s.kind == RECV_REDUCE:
                row[at.LANDING], row[at.STAGE] = at.STREAMED if streams else at.WHOLE, base + top
                top += self._landing_bytes(row, extents[s.span])
            before = last.get((s.peer, s.kind == SEND))
            row[at.PREVIOUS] = position - before if before is not None else 0
            last[s.peer, s.kind == SEND] = position
            index[s] = position
            self.rows.append(row)
        pacer = next((i for s, i in index.items() if s.kind != SEND), None)
        for s, i in index.items():
            if s.kind == SEND and pacer is not None:
                self.rows[first + i][at.PACE] = pacer - i
        for (_, buffer, span, own), operands in local.items():
            self._fold(buffer, span, own, operands, extents, private, index, first, streams)
        if len(self.rows) > first:
            self.rounds.append([first, len(self.rows) - first, number, 0])
        return top

    def _landing_bytes(self, row: list[int], extent: Extent) -> int:
        if row[at.LANDING] == at.STREAMED:
            return 2 * self.piece if row[at.LINK] == at.MPI else 0
        return aligned(max(extent.length, extent.tail) * self.target.itemsize)

    def _fold(
        self,
        buffer: str,
        span: Span,
        own: str,
        operands: Sequence[Step | None],
        extents: dict[Span, Extent],
        private: "_Private | None",
        index: dict[Step, int],
        first: int,
        streams: bool,
    ) -> None:
        numbers = range(self.seen_terms, self.seen_terms + len(operands))
        self.seen_terms += len(operands)
        if not self._any(span, extents):
            return
        row = self._row(at.FOLD, span, extents, buffer, private)
        row[at.FIRST_TERM], row[at.TERM_COUNT], row[at.STREAM] = len(self.terms), len(operands), streams
        after = [i for s, i in index.items() if s.kind == SEND and s.buffer == buffer and overlap(s.span, span)]
        if after:
            row[at.AFTER], row[at.END_AFTER] = min(after), max(after) + 1
        row[at.LINK] = next((self.rows[first + index[s]][at.LINK] for s in operands if s is not None), 0)
        self.rows.append(row)
        for number, s in zip(numbers, operands, strict=True):
            if s is None:
                p = self._place(own, span, extents, private)
                term = [at.OWN, p.buffer, p.offset, p.stride, p.tail_offset]
            else:
                term = [index[s]]
            self.terms.append(term + [0] * (at.TERM_WORDS - len(term)))
            self.weights.append(self.target.weights[number] if self.target.weights is not None else 1)

    def _row(
        self, kind: int, span: Span, extents: dict[Span, Extent], buffer: str, private: "_Private | None"
    ) -> list[int]:
        place, e, size = self._place(buffer, span, extents, private), extents[span], self.target.itemsize
        row = [0] * at.ROW_WORDS
        row[at.KIND], row[at.BUFFER], row[at.OFFSET], row[at.STRIDE] = kind, place.buffer, place.offset, place.stride
        row[at.LENGTH], row[at.FULL] = e.length * size, e.full
        row[at.TAIL_OFFSET], row[at.TAIL_LENGTH] = place.tail_offset, e.tail * size
        if max(place.offset + e.full * place.stride, place.tail_offset) > LARGEST_OFFSET:
            raise ValueError(f"an offset passes {LARGEST_OFFSET} bytes: the message is too long")
        return row

    def _any(self, span: Span, extents: dict[Span, Extent]) -> bool:
        e = extents[span]
        return (e.length > 0 and e.full > 0) or e.tail > 0

    def _link(self, peer: int | None, lane: int, slots: int) -> int:
        assert peer is not None
        t = self.target
        return t.link(peer) if lane < t.fifo_lanes and slots <= t.fifo_slots else at.MPI

    # ------------------------------------------------------------ words
    def _build(self, scratch_bytes: int) -> Table:
        words = [0] * at.HEADER
        words[at.N_PHASES], words[at.INSTANCES] = len(self.phases), self.instances
        widest = max((r[at.ROW_COUNT] for r in self.rounds), default=0)
        words[at.INSTANCE_WORDS] = at.INSTANCE_HEADER + widest * at.ROW_STATE_WORDS
        words[at.MOST_TERMS] = max((row[at.TERM_COUNT] for row in self.rows), default=0)
        words[at.SCRATCH_BYTES], words[at.SLOT_BYTES] = aligned(scratch_bytes), self.slot_bytes
        words[at.PIECE_BYTES] = self.piece
        sections: tuple[tuple[int, Iterable[Sequence[int]]], ...] = (
            (at.PHASES, self.phases),
            (at.LANES, self.lanes),
            (at.ROUNDS, self.rounds),
            (at.ROWS, self.rows),
            (at.TERMS, self.terms),
            (at.WEIGHTS, [self.weights]),
        )
        for section, lines in sections:
            words += [0] * (-len(words) % 8)  # sections begin on a cache line
            words[section] = len(words)
            for line in lines:
                words += line
        words[at.WORDS] = len(words)
        messages = sum(row[at.KIND] == at.SEND for row in self.rows)
        return Table(words, len(self.rows), messages, words[at.WEIGHTS], self.seen_terms)


class _Private:
    """The scratch of a pipeline's slot: packed by what a full segment needs."""

    def __init__(self, lane: Lane, extents: dict[Span, Extent], itemsize: int, base: int):
        self.pieces: dict[Span, tuple[int, int, int]] = {}
        top = 0
        for piece in scratch_spans([lane]):
            inside = [e for x, e in extents.items() if overlap(x, piece)]
            lo, hi = min(e.lo for e in inside), max(e.hi for e in inside)
            tail_lo, tail_hi = min(e.tail_lo for e in inside), max(e.tail_hi for e in inside)
            self.pieces[piece] = base + top, lo, tail_lo
            top += aligned(max(hi - lo, tail_hi - tail_lo) * itemsize)
        self.bytes = top

    def offsets(self, span: Span, itemsize: int, extents: dict[Span, Extent]) -> tuple[int, int]:
        at_, lo, tail_lo = next(v for x, v in self.pieces.items() if x.lo <= span.lo and span.hi <= x.hi)
        e = extents[span]
        return at_ + (e.lo - lo) * itemsize, at_ + (e.tail_lo - tail_lo) * itemsize


def aligned(n_bytes: int) -> int:
    return -(-n_bytes // at.LINE) * at.LINE


def overlap(a: Span, b: Span) -> bool:
    return a.lo < b.hi and b.lo < a.hi


def pack(spans: Iterable[Span], length: Callable[[Span], int]) -> dict[Span, int]:
    """Where each span begins when they lie one after the other."""
    places, top = {}, 0
    for span in spans:
        places[span] = top
        top += length(span)
    return places


def scratch_spans(lanes: Iterable[Lane]) -> list[Span]:
    """What lanes use of scratch; overlapping spans are joined."""
    used = {
        s.span for lane in lanes for steps in lane.rounds for s in steps if SCRATCH in (s.buffer, s.own)
    }
    joined: list[Span] = []
    for x in sorted(used):
        if joined and x.lo < joined[-1].hi:
            x = Span(joined[-1].lo, max(x.hi, joined.pop().hi))
        joined.append(x)
    return joined


def term_count(schedule: Schedule) -> int:
    """How many terms the folds of a schedule have."""
    rounds = (steps for phase in schedule.phases for lane in phase.lanes.values() for steps in lane.rounds)
    return sum(len(operands) for steps in rounds for operands in folds(steps).values())


def smallest_part(schedule: Schedule) -> Fraction:
    """The smallest span that a step names: with 1 / that many elements no message is left out."""
    spans = (s.span for phase in schedule.phases for lane in phase.lanes.values() for r in lane.rounds for s in r)
    return min((span.size for span in spans), default=Fraction(1))



def output_may_be_input(schedule: Schedule) -> bool:
    """Whether the caller's output may be its input: no step reads input where an earlier or parallel one has written."""
    writes: list[tuple[int, int, int, Span, Step]] = []
    reads: list[tuple[int, int, int, Span, Step]] = []
    for phase, lanes in enumerate(schedule.phases):
        for number, lane in lanes.lanes.items():
            for index, s in ((i, s) for i, steps in enumerate(lane.rounds) for s in steps):
                if s.kind != SEND and s.buffer == OUTPUT:
                    writes.append((phase, number, index, s.span, s))
                if (s.buffer if s.kind == SEND else s.own) == INPUT:
                    reads.append((phase, number, index, s.span, s))
    return not any(
        overlap(w[3], r[3])
        and (r[0] > w[0] or (r[0] == w[0] and (r[1] != w[1] or r[2] >= w[2])))
        and not (w[:4] == r[:4] and w[4].kind == r[4].kind != SEND)  # my own operand of the very fold that writes
        for w in writes
        for r in reads
    )
