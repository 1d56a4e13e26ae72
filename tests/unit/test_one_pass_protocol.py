"""The single passes' two barriers, in every interleaving: 2 and 3 ranks, calls of several kinds in a row.

A model of collectives/native/one_pass.py, and of levels.py, whose two kernels are together an allreduce: what goes
between nodes lies between its reading and its storing. Each rank's share has a chunk for each rank. Every access to a
chunk, the caller's own writing before a call included, begins and ends at moments of its own. Nobody may write what
another is accessing, and whoever reads must find what the owner has put there for this very call. Where the call is
not served in one pass, ranks do what ordinary phases would let them at most: they return whenever they like.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import pytest

ALLREDUCE, REDUCE, REDUCE_SCATTER, ALLGATHER, BROADCAST, ORDINARY = (
    "allreduce", "reduce", "reduce_scatter", "allgather", "broadcast", "ordinary",
)  # fmt: skip
KINDS = (ALLREDUCE, REDUCE, REDUCE_SCATTER, ALLGATHER, BROADCAST, ORDINARY)


class Call(NamedTuple):
    kind: str
    root: int = 0
    ordinary: tuple[int, ...] = ()  # ranks whose memory is not symmetric

    def shares(self, rank: int) -> bool:
        return self.kind != ORDINARY and rank not in self.ordinary

    @property
    def served(self) -> bool:
        """Whether it is a single pass: decided by what ranks publish."""
        return self.kind != ORDINARY and (
            self.root not in self.ordinary if self.kind == BROADCAST else not self.ordinary
        )


class Act(NamedTuple):
    """What a rank does next. An access has two moments; `came` and `passed` are whom it waits for."""

    what: str  # write, publish, read, store, pass, return
    chunks: tuple[tuple[int, int], ...] = ()  # (owner, chunk)
    came: tuple[int, ...] = ()
    passed: tuple[int, ...] = ()


class Rank(NamedTuple):
    call: int = 0
    done: int = 0  # acts of the call
    within: bool = False  # an access has begun and not ended
    published: int = -1  # the last call that was
    passed: int = -1


class Broken(AssertionError):
    """Somebody accessed what somebody else was writing, or found what it should not."""


class Model:
    def __init__(self, ranks: int, calls: tuple[Call, ...]):
        self.ranks, self.calls = ranks, calls
        self.acts = [[self.acts_of(call, rank) for rank in range(ranks)] for call in calls]

    def acts_of(self, call: Call, me: int) -> list[Act]:
        everyone = tuple(range(self.ranks))
        others = tuple(rank for rank in everyone if rank != me)
        mine = tuple((rank, me) for rank in everyone)  # my chunk of all shares
        begin = [Act("write", tuple((me, chunk) for chunk in everyone)), Act("publish")]
        if call.kind == BROADCAST:
            return [*begin, *self.broadcast(call, me)] if call.served else [*begin, Act("return")]
        if not call.served:
            return [*begin, Act("return")]
        targets = {ALLREDUCE: mine, ALLGATHER: mine, REDUCE: ((call.root, me),), REDUCE_SCATTER: ()}[call.kind]
        stores = [Act("store", (target,), came=everyone) for target in targets]
        reads = [Act("read", mine, came=everyone)] if call.kind != ALLGATHER else []
        return [*begin, *reads, *stores, Act("pass"), Act("return", passed=self.awaited(others))]

    def broadcast(self, call: Call, me: int) -> list[Act]:
        """Root writes the last chunk to those that share, in turn; they, and the others, read what is left."""
        root, last, others = call.root, self.ranks - 1, [(call.root + k) % self.ranks for k in range(1, self.ranks)]
        if me == root:
            stores = [Act("store", ((rank, last),), came=(rank,)) for rank in others if call.shares(rank)]
            return [*stores, Act("pass"), Act("return", passed=self.awaited(tuple(others)))]
        pushed = call.shares(me)
        reads = [Act("read", ((root, chunk),), came=(root,)) for chunk in range(self.ranks - pushed)]
        return [*reads, Act("pass"), Act("return", passed=self.awaited((root,)) if pushed else ())]

    def awaited(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Whose accesses to my share must be over before I return."""
        return ranks

    # -------------------------------------------------- what may happen
    def moves(self, state: tuple, memory: dict) -> Iterator[tuple[tuple, dict]]:
        for me, r in enumerate(state):
            if r.call == len(self.calls):
                continue
            act = self.acts[r.call][me][r.done]
            if not r.within and not self.may(act, r, state):
                continue
            ended = r._replace(done=r.done + 1, within=False)
            after = memory
            if act.what == "publish":
                ended = ended._replace(published=r.call)
            elif act.what == "pass":
                ended = ended._replace(passed=r.call)
            elif act.what == "return":
                self.check_result(me, r.call, state, memory)
                ended = Rank(r.call + 1, published=r.published, passed=r.passed)
            elif not r.within:
                self.check_access(me, act, r.call, state, memory)
                ended = r._replace(within=True)
            elif act.what != "read":
                after = memory | dict.fromkeys(act.chunks, (r.call, act.what))
            yield (*state[:me], ended, *state[me + 1 :]), after

    def may(self, act: Act, r: Rank, state: tuple) -> bool:
        came = all(state[rank].published >= r.call for rank in act.came)
        return came and all(state[rank].passed >= r.call for rank in act.passed)

    def check_access(self, me: int, act: Act, call: int, state: tuple, memory: dict) -> None:
        for other, o in enumerate(state):
            if other != me and o.within:
                theirs = self.acts[o.call][other][o.done]
                harmless = theirs.what == act.what == "read"
                if not harmless and set(theirs.chunks) & set(act.chunks):
                    raise Broken(f"ranks {me} and {other} at once: {act}, {theirs}: {state}")
        for chunk in act.chunks if act.what == "read" else ():
            if memory[chunk] != (call, "write"):
                raise Broken(f"rank {me} finds {memory[chunk]} in {chunk}: {state}")

    def check_result(self, me: int, number: int, state: tuple, memory: dict) -> None:
        call, last = self.calls[number], self.ranks - 1
        stored = {
            ALLREDUCE: range(self.ranks), ALLGATHER: range(self.ranks), REDUCE: range(self.ranks * (me == call.root)),
            BROADCAST: [last] * (me != call.root and call.shares(me)),
        }.get(call.kind, ()) if call.served else ()  # fmt: skip
        for chunk in range(self.ranks):
            if memory[me, chunk] != (number, "store" if chunk in stored else "write"):
                raise Broken(f"rank {me} returns from {call} with {memory[me, chunk]} in {chunk}: {state}")

    def explore(self) -> int:
        """Visits every state; raises Broken, or says that ranks are stuck. Returns how many states there are."""
        start = (Rank(),) * self.ranks, {(o, c): (-1, "") for o in range(self.ranks) for c in range(self.ranks)}
        seen, waiting = {(start[0], tuple(start[1].values()))}, [start]
        while waiting:
            state, memory = waiting.pop()
            following = list(self.moves(state, memory))
            if not following:
                assert all(r.call == len(self.calls) for r in state), f"stuck: {state}"
            for new, after in following:
                key = new, tuple(after.values())
                if key not in seen:
                    seen.add(key)
                    waiting.append((new, after))
        return len(seen)


@pytest.mark.parametrize("first", KINDS)
def test_two_ranks_three_calls_of_any_kinds(first):
    for second, third in product(KINDS, repeat=2):
        calls = (Call(first), Call(second, root=1), Call(third))
        assert Model(2, calls).explore() > 40


@pytest.mark.parametrize("kind", KINDS[:5])
def test_a_rank_with_ordinary_memory(kind):
    for second, rank in product(KINDS[:5], range(2)):
        calls = (Call(kind, ordinary=(rank,)), Call(second), Call(kind, root=1, ordinary=(rank,)))
        assert Model(2, calls).explore() > 10


@pytest.mark.parametrize("kinds", list(product(KINDS[:5], KINDS[:3])), ids="-".join)
def test_three_ranks(kinds):
    first, second = kinds
    assert Model(3, (Call(first, root=2), Call(second, root=1))).explore() > 100


def test_three_ranks_of_which_one_has_ordinary_memory():
    for kind in KINDS[:5]:
        assert Model(3, (Call(kind, root=1, ordinary=(2,)), Call(ALLREDUCE))).explore() > 100


class Hasty(Model):
    """Returns without a closing barrier."""

    def awaited(self, _):
        return ()


@pytest.mark.parametrize("kind", KINDS[:5])
def test_returning_before_all_have_passed_is_caught(kind):
    with pytest.raises(Broken):
        Hasty(2, (Call(kind), Call(ORDINARY))).explore()


class Eager(Model):
    """Does not wait until others have come."""

    def may(self, act, r, state):
        return super().may(act._replace(came=()), r, state)


@pytest.mark.parametrize("kind", KINDS[:5])
def test_accessing_before_all_have_come_is_caught(kind):
    with pytest.raises(Broken):
        Eager(2, (Call(kind),)).explore()
