"""The node kernels' counters, in every interleaving: 2 and 3 ranks, kernels of several kinds in a row on one window.

A model of collectives/native/fused.py in which a rank may do anything that its guards allow, in any order, and in which
every read of memory that others write begins and ends at moments of its own: what lies there must be the same piece of
the same call at both. What the kernels add to the model (an order of their own) only takes interleavings away.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import pytest

from collectives.native.layout import LAG, RING

ONE_SHOT, TWO_SHOT, SINGLE_COPY = "one_shot", "two_shot", "single_copy"


class Rank(NamedTuple):
    """Where a rank is: its call, how many pieces it has given, folded and taken in it, and what it is reading."""

    call: int = 0
    given: int = 0
    folded: int = 0
    taken: int = 0
    reading: tuple = ()  # (what: fold or take, [(writer, kind of place, slot, expected tag)])


class Broken(AssertionError):
    """Somebody read what somebody else was writing."""


class Model:
    """Ranks that make the calls `kinds`, in pieces. What a writer has written is told by where it is."""

    def __init__(
        self, ranks: int, kinds: tuple[str, ...], pieces: int, ring: int = RING, lag: int = LAG, halves: int = 2
    ):
        self.ranks, self.kinds, self.ring, self.lag, self.halves = ranks, kinds, ring, lag, halves
        self.pieces = [1 if kind == ONE_SHOT else pieces for kind in kinds]
        self.base = [sum(self.pieces[:call]) for call in range(len(kinds) + 1)]

    # -------------------------------------------------- counters, as others see them
    def given(self, r: Rank) -> int:
        if r.call == len(self.kinds):
            return self.base[-1]
        all_at_once = self.kinds[r.call] == SINGLE_COPY and r.given
        return self.base[r.call] + (self.pieces[r.call] if all_at_once else r.given)

    def folded(self, r: Rank) -> int:
        return self.base[r.call] + (r.folded if r.call < len(self.kinds) else 0)

    def done(self, r: Rank) -> int:
        """TAKEN: what single_copy waits for before it returns."""
        ended = r.call < len(self.kinds) and r.taken == self.pieces[r.call]
        return self.base[r.call + 1] if ended else self.base[r.call]

    # -------------------------------------------------- memory: place -> tag, from where its writer is
    def place(self, call: int, kind: str, piece: int) -> tuple:
        half = call % self.halves
        return (kind, half, piece % self.ring) if self.kinds[call] == TWO_SHOT else (kind, half, 0)

    def holds(self, r: Rank, place: tuple) -> tuple | None:
        """What the rank r has last written there."""
        kind, half, _ = place
        if kind == "data":  # the caller's own memory: of the call that the rank is in
            return (r.call,) if r.call < len(self.kinds) else None
        for call in range(min(r.call, len(self.kinds) - 1), -1, -1):
            count = self.pieces[call] if call < r.call else r.given if kind == "gift" else r.folded
            if call % self.halves == half and self.kinds[call] != SINGLE_COPY:
                for piece in range(count - 1, -1, -1):
                    if self.place(call, kind, piece) == place:
                        return call, piece
        return None

    def check(self, state: tuple[Rank, ...], reads: tuple) -> None:
        for writer, place, tag in reads:
            found = self.holds(state[writer], place)
            if found != tag:
                raise Broken(f"{place} of rank {writer} holds {found}, not {tag}: {state}")

    # -------------------------------------------------- what may happen
    def moves(self, state: tuple[Rank, ...]) -> Iterator[tuple[Rank, ...]]:
        for me, r in enumerate(state):
            for moved in self.moves_of(state, me, r):
                yield (*state[:me], moved, *state[me + 1 :])

    def moves_of(self, state: tuple[Rank, ...], me: int, r: Rank) -> Iterator[Rank]:
        if r.call == len(self.kinds):
            return
        kind, pieces, base = self.kinds[r.call], self.pieces[r.call], self.base[r.call]
        others = [(i, other) for i, other in enumerate(state) if i != me]
        if r.reading:
            what, reads = r.reading
            self.check(state, reads)
            yield r._replace(reading=(), folded=r.folded + (what == "fold"), taken=r.taken + (what == "take"))
            return
        if kind == SINGLE_COPY:
            if not r.given:
                yield r._replace(given=pieces)
            if r.given and r.folded < pieces and all(self.given(o) >= base + pieces for _, o in others):
                yield self.read(state, r, "fold", [(i, ("data", 0, 0), (r.call,)) for i, _ in others])
        else:
            if r.given < pieces and r.given <= r.taken + 2 * self.lag:
                yield r._replace(given=r.given + 1)
            if r.folded < r.given and all(self.given(o) >= base + r.folded + 1 for _, o in others):
                gift = self.place(r.call, "gift", r.folded)
                yield self.read(state, r, "fold", [(i, gift, (r.call, r.folded)) for i, _ in others])
        if r.taken < r.folded and (kind == ONE_SHOT or all(self.folded(o) >= base + r.taken + 1 for _, o in others)):
            result = self.place(r.call, "result", r.taken)
            tagged = {ONE_SHOT: [], TWO_SHOT: [(i, result, (r.call, r.taken)) for i, _ in others]}
            yield self.read(state, r, "take", tagged.get(kind, [(i, ("data", 0, 0), (r.call,)) for i, _ in others]))
        if r.taken == pieces and (kind != SINGLE_COPY or all(self.done(o) >= base + pieces for _, o in others)):
            yield Rank(call=r.call + 1)

    def read(self, state: tuple[Rank, ...], r: Rank, what: str, reads: list) -> Rank:
        self.check(state, tuple(reads))
        return r._replace(reading=(what, tuple(reads)))

    def explore(self) -> int:
        """Visits every state; raises Broken, or says that ranks are stuck. Returns how many states there are."""
        start = (Rank(),) * self.ranks
        seen, waiting = {start}, [start]
        while waiting:
            state = waiting.pop()
            following = list(self.moves(state))
            if not following:
                assert all(r.call == len(self.kinds) for r in state), f"stuck: {state}"
            for new in following:
                if new not in seen:
                    seen.add(new)
                    waiting.append(new)
        return len(seen)


@pytest.mark.parametrize("kinds", list(product((ONE_SHOT, TWO_SHOT, SINGLE_COPY), repeat=3)), ids="-".join)
def test_two_ranks_three_calls_of_any_kinds(kinds):
    assert Model(2, kinds, pieces=2).explore() > 100


def test_two_ranks_many_pieces():
    assert Model(2, (TWO_SHOT, TWO_SHOT, TWO_SHOT), pieces=RING + 2).explore() > 1000


@pytest.mark.parametrize(
    "kinds", [(ONE_SHOT,) * 3, (TWO_SHOT, ONE_SHOT), (ONE_SHOT, SINGLE_COPY, ONE_SHOT)], ids="-".join
)
def test_three_ranks(kinds):
    assert Model(3, kinds, pieces=2).explore() > 100


def test_three_ranks_around_the_ring():
    assert Model(3, (TWO_SHOT,), pieces=4, ring=3, lag=1).explore() > 1000


def test_the_shortest_ring_that_serves():
    assert Model(2, (TWO_SHOT,), pieces=RING + 2, ring=2 * LAG + 1).explore() > 100


def test_a_shorter_ring_is_caught():
    with pytest.raises(Broken):
        Model(2, (TWO_SHOT,), pieces=RING + 2, ring=2 * LAG).explore()


def test_staging_without_halves_is_caught():
    with pytest.raises(Broken):
        Model(2, (ONE_SHOT, ONE_SHOT, ONE_SHOT), pieces=1, halves=1).explore()


def test_returning_before_all_have_read_is_caught():
    class Hasty(Model):
        def done(self, _):
            return self.base[-1]

    with pytest.raises(Broken):
        Hasty(2, (SINGLE_COPY, SINGLE_COPY), pieces=1).explore()
