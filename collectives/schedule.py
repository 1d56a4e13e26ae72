"""Schedules: what a collective algorithm emits. Data only: no pointer, dtype, element count or byte.

An algorithm is a generator, and what it yields is a round, the steps that are posted together:

    def exchange(g, span=WHOLE):
        peer = g[g.rank ^ 1]
        yield [send(span, to=peer), recv_reduce(span, source=peer)]

Algorithms compose by `yield from`. Lanes that run side by side are a Phase, which is yielded like a round.

A round is simultaneous: its steps read what was there at its start, and write, in disjoint places, what is there at
its end. Only a plain recv may write early, so nothing else in its round reads its place.
"""

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, repeat, zip_longest
from operator import attrgetter
from typing import NamedTuple, TypeAlias

DATA, INPUT, OUTPUT, SCRATCH = "data", "input", "output", "scratch"
SEND, RECV, RECV_REDUCE, COPY = "send", "recv", "recv_reduce", "copy"


class Span(NamedTuple):
    """Half-open interval of the message, in exact fractions: the same elements in every buffer of every rank."""

    lo: Fraction
    hi: Fraction

    @property
    def size(self) -> Fraction:
        return self.hi - self.lo

    def split(self, n: int) -> "tuple[Span, ...]":
        """n equal spans, in order."""
        return _split(self, n)

    def part(self, i: int, n: int) -> "Span":
        """The i-th of n equal spans, where the others are not wanted."""
        return Span(self.lo + self.size * Fraction(i, n), self.lo + self.size * Fraction(i + 1, n))

    def shares(self, weights: Sequence[int]) -> "tuple[Span, ...]":
        """Spans in order, in proportion to the weights; one of weight 0 is empty."""
        cuts = [self.lo + self.size * Fraction(cut, sum(weights)) for cut in accumulate(weights, initial=0)]
        return tuple(map(Span, cuts, cuts[1:]))

    def overlaps(self, other: "Span") -> bool:
        return self.lo < other.hi and other.lo < self.hi

    def __contains__(self, other: object) -> bool:
        return isinstance(other, Span) and self.lo <= other.lo and other.hi <= self.hi

    def __hash__(self) -> int:
        """As good as that of two fractions, at a tenth of the time: theirs takes a modular inverse."""
        (a, b), (c, d) = self.lo.as_integer_ratio(), self.hi.as_integer_ratio()
        return hash((a, b, c, d))

    def __str__(self) -> str:
        return f"[{self.lo}, {self.hi})"


@lru_cache(1024)  # asked for by every rank, and again for the next message; equal spans that are one compare fast
def _split(span: Span, n: int) -> tuple[Span, ...]:
    cuts = list(accumulate(repeat(span.size / n, n), initial=span.lo))
    return tuple(map(Span, cuts, cuts[1:]))


@lru_cache(4096)
def _segment(span: Span, cell: Span, k: int, n: int) -> Span:
    return Span(*(cell.lo + (k * cell.size + x - cell.lo) / n for x in span))


WHOLE = Span(Fraction(0), Fraction(1))


class Group:
    """Ranks in order, and mine among them. Indices wrap around: g[g.rank + 1] is my right neighbour."""

    def __init__(self, ranks: Iterable[int], me: int):
        self.ranks, self.me = tuple(ranks), me
        if me not in self.ranks:
            raise ValueError(f"rank {me} is not in the group {self.ranks}")
        self.size, self.rank = len(self.ranks), self.ranks.index(me)

    def __getitem__(self, i: int) -> int:
        return self.ranks[i % self.size]


class Step(NamedTuple):
    """One of four kinds: send, recv, recv_reduce, copy. Both ends of a message name the same span."""

    kind: str
    span: Span
    peer: int | None
    buffer: str  # what a send reads, what the other kinds write
    own: str | None = None  # recv_reduce: where my operand lies; copy: where the data come from
    place: int = 1  # recv_reduce: the received operand's place in the fold; mine is the place left free


Round: TypeAlias = list[Step]


def send(span: Span, to: int, buffer: str = DATA) -> Step:
    return Step(SEND, span, to, buffer)


def recv(span: Span, source: int, buffer: str = DATA) -> Step:
    return Step(RECV, span, source, buffer)


def recv_reduce(span: Span, source: int, buffer: str = DATA, own: str | None = None, place: int = 1) -> Step:
    """Receive an operand of the fold into buffer. My own operand lies there too, or in the buffer `own`."""
    return Step(RECV_REDUCE, span, source, buffer, own or buffer, place)


def copy(span: Span, own: str, buffer: str) -> Step:
    """Copy my own data from the buffer `own` to `buffer`."""
    return Step(COPY, span, None, buffer, own)


def fold(span: Span, order: Iterable[int], me: int, buffer: str = DATA, own: str | None = None) -> Round:
    """One n-ary reduction over the ranks in `order`, my own operand in its place: rounded once."""
    places = tuple(order)
    if places == (me,):
        return [] if own in (None, buffer) else [copy(span, own, buffer)]
    return [recv_reduce(span, source, buffer, own, place) for place, source in enumerate(places) if source != me]


Target: TypeAlias = tuple[str, str, Span, str | None]


def folds(steps: Iterable[Step]) -> dict[Target, list[Step | None]]:
    """A round's folds, {(kind, buffer, span, own): operands in order}; None is my own. A copy is a fold of that alone.

    Where places are not 0 to n with one left free, the operands hold more than one None: the verifier refuses that.
    """
    found: dict[Target, list[Step]] = {}
    for s in steps:
        if s.kind in (RECV_REDUCE, COPY):
            found.setdefault((s.kind, s.buffer, s.span, s.own), []).extend([s] * (s.kind == RECV_REDUCE))
    at = {target: {s.place: s for s in got} for target, got in found.items()}
    return {target: [at[target].get(i) for i in range(len(got) + 1)] for target, got in found.items()}


def mirror(rounds: Iterable[Round]) -> list[Round]:
    """The rounds backwards: what was sent comes back, what was folded goes out.

    A reduce becomes a broadcast, a reduce-scatter an allgather.
    """
    return [[_turned(s) for s in steps] for steps in reversed(list(rounds))]


def _turned(s: Step) -> Step:
    if s.peer is None:
        raise ValueError(f"a {s.kind} has no mirror image: only messages have one")
    return (recv if s.kind == SEND else send)(s.span, s.peer, s.buffer)


def there_and_back(rounds: Iterable[Round]) -> list[Round]:
    """The rounds, and then their mirror image."""
    rounds = list(rounds)
    return rounds + mirror(rounds)


def wrapped(chunks: Sequence[Span], first: int, n: int) -> list[Span]:
    """Chunks first to first + n - 1, wrapping around, as one or two spans."""
    first %= len(chunks)
    head, tail = chunks[first : first + n], chunks[: max(0, first + n - len(chunks))]
    return [Span(part[0].lo, part[-1].hi) for part in (head, tail) if part]


def together(*algorithms: Iterable[Round]) -> list[Round]:
    """Several algorithms in the same rounds."""
    return [[s for steps in rounds for s in steps] for rounds in zip_longest(*algorithms, fillvalue=[])]


class Lane(NamedTuple):
    """Rounds in sequence, with a message channel of their own.

    With cells it is a pipeline, written for one segment: segment k of n is the k-th part of every cell, whatever n is.
    Slot j of W runs segments j, j + W, j + 2W, ... in sequence, and is a lane in its own right: it has its own
    channel, and its own scratch, in which nothing is left from one segment to the next.
    """

    rounds: tuple[tuple[Step, ...], ...]
    cells: tuple[Span, ...] = ()  # disjoint, in order; every step's span is in one of them
    slots: int = 1

    def spans(self) -> dict[Span, None]:
        """The spans that its steps name, in the order of their first use."""
        return dict.fromkeys(s.span for steps in self.rounds for s in steps)

    def cell(self, span: Span) -> Span:
        """The cell where the span begins."""
        return self.cells[bisect(self.cells, span.lo, key=attrgetter("lo")) - 1]

    def segment(self, span: Span, k: int, n: int) -> Span:
        """What the span, of a step, is in segment k of n."""
        return _segment(span, self.cell(span), k, n)


class Phase(NamedTuple):
    """Lanes that start together and join. A lane has the same number on all its ranks; a rank may lack some."""

    lanes: Mapping[int, Lane]


class Schedule(NamedTuple):
    """All that one rank does, for a collective, an algorithm, its parameters, a group and a topology."""

    phases: tuple[Phase, ...]


def lane(rounds: Iterable[Round], cells: Iterable[Span] = (), slots: int = 1) -> Lane:
    """A lane of the rounds that are not empty; with cells, a pipeline."""
    return Lane(tuple(tuple(steps) for steps in rounds if steps), tuple(cells), slots)


def collect(parts: Iterable[Round | Phase]) -> Schedule:
    """Runs an algorithm. Rounds in a row are a phase of one lane; what is empty is left out."""
    phases: list[Mapping[int, Lane]] = []
    rounds: list[Round] = []
    for part in parts:
        if not isinstance(part, Phase):
            rounds.append(part)
            continue
        phases += [{0: lane(rounds)}, part.lanes]
        rounds = []
    phases.append({0: lane(rounds)})
    filled = ({i: x for i, x in lanes.items() if x.rounds} for lanes in phases)
    return Schedule(tuple(Phase(lanes) for lanes in filled if lanes))
