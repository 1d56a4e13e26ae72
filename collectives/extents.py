"""From fractions of the message to elements: by one monotone function, the same on all ranks."""

from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import attrgetter

from collectives.layout import LINE
from collectives.schedule import SCRATCH, Lane, Span


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


def extents(lane: Lane, bound: Bound, segment: int | None) -> dict[Span, Extent]:
    """Of every span that the lane's steps name; in a pipeline, for segments of about so many elements."""
    if not lane.cells:
        return {x: Extent(0, bound.length(x), 0, 0, bound(x.lo), 0, 1) for x in lane.spans()}
    n = max(1, *(-(-bound.length(cell) // segment) if segment else 1 for cell in lane.cells))
    found = {}
    for x in lane.spans():
        cell = lane.cell(x)
        length, part = bound.length(cell), [(end - cell.lo) / cell.size for end in x]
        step = max(1, -(-length // (n * bound.align)) * bound.align)
        full = length // step
        inner = [aligned_part(step, end, bound.align) for end in part]
        tail = [aligned_part(length - full * step, end, bound.align) for end in part]
        found[x] = Extent(inner[0], inner[1], tail[0], tail[1], bound(cell.lo), step, full)
    return found


class Private:
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
    return -(-n_bytes // LINE) * LINE


def overlap(a: Span, b: Span) -> bool:
    return a.lo < b.hi and b.lo < a.hi


class Packed:
    """Spans that lie one after the other, in elements."""

    def __init__(self, spans: Iterable[Span], bound: Bound):
        self.starts: dict[Span, int] = {}
        self.length = 0
        for span in spans:
            self.starts[span] = self.length
            self.length += bound.length(span)
        self.sorted = sorted(self.starts)

    def find(self, span: Span) -> tuple[int, Span]:
        """Where the piece that holds the span begins, and which it is."""
        piece = span if span in self.starts else self.sorted[bisect(self.sorted, span.lo, key=attrgetter("lo")) - 1]
        return self.starts[piece], piece


def scratch_spans(lanes: Iterable[Lane]) -> list[Span]:
    """What lanes use of scratch; overlapping spans are joined."""
    used = {s.span for lane in lanes for steps in lane.rounds for s in steps if SCRATCH in (s.buffer, s.own)}
    joined: list[Span] = []
    for x in sorted(used):
        if joined and x.lo < joined[-1].hi:
            x = Span(joined[-1].lo, max(x.hi, joined.pop().hi))
        joined.append(x)
    return joined
