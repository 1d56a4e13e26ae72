"""The node kernels' counters, in every interleaving: 2 and 3 ranks, kernels of all kinds in a row on one window.

A model of collectives/native (fused, staged, single_copy) in which a rank may do anything that its guards allow, in any
order, and in which every read of memory that others write begins and ends at moments of its own: what lies there must
be the same piece of the same call at both. What the kernels add to the model (an order of their own, and looking at
counters only now and then) only takes interleavings away.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import pytest

from collectives.native.layout import RING


class Kind(NamedTuple):
    """What a kernel does: see native/staged.py. copies: straight from the others' memory."""

    name: str
    gives: bool = True
    owner: int | None = None  # None: everyone
    takers: str = "all"  # all, root, none
    root: int = 0
    copies: bool = False
    one_shot: bool = False

    def owns(self, rank: int) -> bool:
        return not self.one_shot and self.owner in (None, rank)

    def takes(self, rank: int) -> bool:
        return not self.one_shot and (self.takers == "all" or (self.takers == "root" and rank == self.root))


ONE_SHOT = Kind("one_shot", one_shot=True)
TWO_SHOT = Kind("two_shot")
REDUCE_SCATTER = Kind("reduce_scatter", takers="none")
ALLGATHER = Kind("allgather", gives=False)
SINGLE_COPY, SINGLE_COPY_ALLGATHER = Kind("single_copy", copies=True), Kind("gather", gives=False, copies=True)
TO_ROOT = [Kind(f"reduce_two_shot_{r}", takers="root", root=r) for r in (0, 1)]
LINEAR = [Kind(f"reduce_{r}", owner=r, takers="none", root=r) for r in (0, 1)]
BROADCAST = [Kind(f"broadcast_{r}", gives=False, owner=r, root=r) for r in (0, 1)]
KINDS = (
    ONE_SHOT,
    TWO_SHOT,
    REDUCE_SCATTER,
    ALLGATHER,
    SINGLE_COPY,
    SINGLE_COPY_ALLGATHER,
    *TO_ROOT,
    *LINEAR,
    *BROADCAST,
)


class Rank(NamedTuple):
    """Where a rank is: its call, how many pieces it has given, folded and taken in it, and what it is reading."""

    call: int = 0
    given: int = 0
    folded: int = 0
    taken: int = 0
    reading: tuple = ()  # (what: fold or take, [(writer, kind of place, slot, expected tag)])


class Broken(AssertionError):
    """Somebody read what somebody else was writing, or believed what is not so."""


class Model:
    """Ranks that make the calls `kinds`, in pieces. What a writer has written is told by where it is."""

    def __init__(self, ranks: int, kinds: tuple[Kind, ...], pieces: int, ring: int = RING, halves: int = 2):
        self.ranks, self.kinds, self.ring, self.halves = ranks, kinds, ring, halves
        self.pieces = [1 if kind.one_shot else pieces for kind in kinds]
        self.base = [sum(self.pieces[:call]) for call in range(len(kinds) + 1)]

    # -------------------------------------------------- counters, as others see them
    def counter(self, rank: int, r: Rank, line: str) -> int:
        """What a rank has last written to a line: in this call, or in the last before that wrote it."""
        for call in range(min(r.call, len(self.kinds) - 1), -1, -1):
            kind, pieces, now = self.kinds[call], self.pieces[call], call == r.call
            count = {
                "given": (r.given if now else pieces) * (kind.gives or kind.copies),
                "folded": (r.folded if now else pieces) * (kind.owns(rank) and (kind.gives or not kind.copies)),
                "taken": (r.taken if now else pieces) * kind.takes(rank),
            }[line]
            if kind.copies and line == "taken" and now and r.taken < pieces:
                count = 0
            if kind.copies and line == "given" and count:
                count = pieces
            if count:
                return self.base[call] + count
        return 0

    def reached(self, state: tuple[Rank, ...], ranks: list[int], line: str, value: int) -> bool:
        return all(self.counter(i, state[i], line) >= value for i in ranks)

    # -------------------------------------------------- memory: place -> tag, from where its writer is
    def holds(self, rank: int, r: Rank, place: tuple) -> tuple | None:
        """What the rank has last written there. A call that has written to a half leaves nothing of those before it."""
        what, half, slot = place
        if what == "data":  # the caller's own memory: of the call that the rank is in
            return (r.call,) if r.call < len(self.kinds) else None
        for call in range(min(r.call, len(self.kinds) - 1), -1, -1):
            kind, pieces, now = self.kinds[call], self.pieces[call], call == r.call
            given, folded = (r.given, r.folded) if now else (pieces, pieces)
            if call % self.halves == half and (given if kind.gives or kind.copies else folded * kind.owns(rank)):
                count = 0 if kind.copies else given * kind.gives if what == "gift" else folded
                return next(((call, piece) for piece in range(count - 1, -1, -1) if piece % self.ring == slot), None)
        return None

    def check(self, state: tuple[Rank, ...], reads: tuple) -> None:
        for writer, place, tag in reads:
            found = self.holds(writer, state[writer], place)
            if found != tag:
                raise Broken(f"{place} of rank {writer} holds {found}, not {tag}: {state}")

    # -------------------------------------------------- what may happen
    def moves(self, state: tuple[Rank, ...]) -> Iterator[tuple[Rank, ...]]:
        for me, r in enumerate(state):
            for moved in self.moves_of(state, me, r):
                yield (*state[:me], moved, *state[me + 1 :])

    def may_begin(self, state: tuple[Rank, ...], r: Rank) -> bool:
        return all(other.call >= r.call - 1 for other in state)

    def moves_of(self, state: tuple[Rank, ...], me: int, r: Rank) -> Iterator[Rank]:
        if r.call == len(self.kinds):
            return
        if r.reading:
            what, reads = r.reading
            self.check(state, reads)
            yield r._replace(reading=(), folded=r.folded + (what == "fold"), taken=r.taken + (what == "take"))
            return
        if not self.may_begin(state, r):
            return
        kind, pieces, base = self.kinds[r.call], self.pieces[r.call], self.base[r.call]
        others = [i for i in range(self.ranks) if i != me]
        if kind.copies:
            yield from self.copies(state, r, others)
            return
        owners, takers = ([i for i in others if chosen(i)] for chosen in (kind.owns, kind.takes))
        written_over = base - self.ring + 1  # + k: what who reads piece k - ring must have come to
        free = r.given < self.ring or self.reached(state, owners, "folded", written_over + r.given)
        if kind.gives and r.given < pieces and free:
            yield r._replace(given=r.given + 1)
        folds = (kind.owns(me) or kind.one_shot) and r.folded < (r.given if kind.gives else pieces)
        given = not kind.gives or self.reached(state, others, "given", base + r.folded + 1)
        free = r.folded < self.ring or self.reached(state, takers, "taken", written_over + r.folded)
        if folds and given and free:
            gift = "gift", r.call % self.halves, r.folded % self.ring
            yield self.read(state, r, "fold", [(i, gift, (r.call, r.folded)) for i in others if kind.gives])
        takes = kind.takes(me) and r.taken < (r.folded if kind.owns(me) else pieces)
        if takes and self.reached(state, owners, "folded", base + r.taken + 1):
            result = "result", r.call % self.halves, r.taken % self.ring
            yield self.read(state, r, "take", [(i, result, (r.call, r.taken)) for i in owners])
        done = r.given == pieces * kind.gives and r.folded == pieces * (kind.owns(me) or kind.one_shot)
        if done and r.taken == pieces * kind.takes(me):
            saw = (kind.gives and folds_anything(kind, me)) or (kind.takes(me) and kind.owner is None)
            yield self.ended(state, r, saw)

    def copies(self, state: tuple[Rank, ...], r: Rank, others: list[int]) -> Iterator[Rank]:
        kind, pieces, base = self.kinds[r.call], self.pieces[r.call], self.base[r.call]
        if not r.given:
            yield r._replace(given=pieces, folded=0 if kind.gives else pieces)
        if not r.given or not self.reached(state, others, "given", base + pieces):
            return
        memory = [(i, ("data", 0, 0), (r.call,)) for i in others]
        if r.folded < pieces:
            yield self.read(state, r, "fold", memory)
        if r.taken < r.folded and (not kind.gives or self.reached(state, others, "folded", base + r.taken + 1)):
            yield self.read(state, r, "take", memory)
        if r.taken == pieces and self.may_return(state, others, base + pieces):
            yield self.ended(state, r, True)

    def may_return(self, state: tuple[Rank, ...], others: list[int], value: int) -> bool:
        return self.reached(state, others, "taken", value)

    def ended(self, state: tuple[Rank, ...], r: Rank, saw_everyone: bool) -> Rank:
        """The next call; who saw something of everyone believes that all have ended the calls before this one."""
        if saw_everyone and any(other.call < r.call for other in state):
            raise Broken(f"believes that all have ended call {r.call - 1}: {state}")
        return Rank(call=r.call + 1)

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


def folds_anything(kind: Kind, rank: int) -> bool:
    return kind.owns(rank) or kind.one_shot


@pytest.mark.parametrize("first", KINDS, ids=lambda kind: kind.name)
def test_two_ranks_three_calls_of_any_kinds(first):
    for second, third in product(KINDS, repeat=2):
        assert Model(2, (first, second, third), pieces=1).explore() > 10


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_two_ranks_many_pieces(kind):
    assert Model(2, (kind,), pieces=RING + 2).explore() > 5
    assert Model(2, (kind, kind), pieces=3, ring=2).explore() > 10


@pytest.mark.parametrize("kind", [*KINDS[:-4], LINEAR[0], BROADCAST[0]], ids=lambda kind: kind.name)
def test_three_ranks(kind):
    pieces = 2 if kind.copies else 3
    assert Model(3, (kind,), pieces=pieces, ring=2).explore() > 20
    assert Model(3, (kind, ONE_SHOT, kind), pieces=1).explore() > 50


@pytest.mark.parametrize("kind", [TWO_SHOT, BROADCAST[0], ALLGATHER, LINEAR[1], TO_ROOT[0]], ids=lambda k: k.name)
def test_writing_over_what_is_not_read_is_caught(kind):
    class Forgetful(Model):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            self.memory_ring = self.ring - 1

        def holds(self, rank, r, place):
            self.ring, kept = self.memory_ring, self.ring
            try:
                return super().holds(rank, r, (*place[:2], place[2] % self.memory_ring))
            finally:
                self.ring = kept

    with pytest.raises(Broken):
        Forgetful(2, (kind,), pieces=5, ring=3).explore()


@pytest.mark.parametrize("kind", [ONE_SHOT, BROADCAST[0], LINEAR[0], REDUCE_SCATTER], ids=lambda kind: kind.name)
def test_staging_without_halves_is_caught(kind):
    with pytest.raises(Broken):
        Model(2, (kind, kind, kind), pieces=1, halves=1).explore()


@pytest.mark.parametrize("kind", [BROADCAST[0], LINEAR[0]], ids=lambda kind: kind.name)
def test_beginning_before_all_have_ended_the_last_but_one_is_caught(kind):
    class Hasty(Model):
        def may_begin(self, *_):
            return True

    with pytest.raises(Broken):
        Hasty(2, (kind, kind, kind), pieces=1).explore()


@pytest.mark.parametrize("kind", [SINGLE_COPY, SINGLE_COPY_ALLGATHER], ids=lambda kind: kind.name)
def test_returning_before_all_have_read_is_caught(kind):
    class Hasty(Model):
        def may_return(self, *_):
            return True

    with pytest.raises(Broken):
        Hasty(2, (kind, kind), pieces=1).explore()
