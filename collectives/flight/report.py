"""One report of several communicators' records: who waits for whom, since when, and who was the first to diverge.

It is made from memory alone, so that any rank can write it, and so can another process when all ranks have ended.
"""

import socket
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from collectives import layout as at
from collectives.flight.diagnosis import BARRIER, NO_OP, STATUS, fields
from collectives.flight.records import MONOTONIC_NS, WALL_NS, Snapshot, lives
from collectives.native import layout as st

SHOWN_CALLS = 5  # of the common history
ACTS = {at.SEND: "sending to", at.RECV: "receiving from"}
Process = tuple[int, int]  # its number, and when it was born


@dataclass
class Standing:
    """What one rank does in one communicator."""

    rank: int
    process: Process
    alive: bool
    published: int  # calls
    completed: int
    status: int  # why it has stopped, or 0
    waits: bool  # whether the rest is of its present call
    since_ns: int  # of the monotonic clock, or 0
    peer: int
    kind: int
    place: tuple[int, ...]  # phase, lane, segment, round, step

    @property
    def inside(self) -> bool:
        """Whether it is in a call."""
        return self.published > self.completed


class Told:
    """One communicator's record, read."""

    def __init__(self, number: int, snapshot: Snapshot, now_ns: int):
        self.number, self.snapshot, self.now_ns = number, snapshot, now_ns
        self.ranks = [self._standing(i) for i in range(snapshot.node_size)]
        self.by_rank = {each.rank: each for each in self.ranks}

    def _standing(self, node_rank: int) -> Standing:
        board = self.snapshot.board(node_rank)
        process = board[st.PROCESS], board[st.BORN]
        waits = board[st.WAITS_IN] > board[st.COMPLETED]
        place = (st.STANDS_PHASE, st.STANDS_LANE, st.STANDS_SEGMENT, st.STANDS_ROUND, st.STANDS_STEP)
        return Standing(
            board[st.RANK], process, lives(process), board[st.PUBLISHED], board[st.COMPLETED], board[st.BOARD_STATUS],
            waits, board[st.WAITS_SINCE] if waits else 0, board[st.STANDS_FOR] if waits else -1,
            board[st.STANDS_KIND], tuple(board[word] for word in place),
        )  # fmt: skip

    def call(self, node_rank: int, seq: int) -> str:
        """What a rank called, for a person."""
        words = self.snapshot.entry(node_rank, seq)
        return described(words[1 : 1 + st.FINGERPRINT_WORDS]) if words else "a call that the record has forgotten"

    def ago(self, moment_ns: int) -> str:
        return f"{max(0, self.now_ns - moment_ns) / 1e9:.1f} s"

    def says(self, node_rank: int) -> str:
        """What the rank does."""
        one = self.ranks[node_rank]
        ended = "" if one.alive else ", has ended"
        stopped = f", {STATUS.get(one.status, 'has stopped')}" if one.status else ""
        if one.inside or one.waits:
            seq = max(one.published, one.completed + 1)
            since = f" since {self.ago(one.since_ns)}" if one.since_ns else ""
            what = self.call(node_rank, seq) if one.inside else "before its start, far ahead of others"
            return f"in call {seq}, {what}{since}{self._where(one)}{stopped}{ended}"
        last = f", the last {self.call(node_rank, one.completed)}" if one.completed else ""
        return f"in none of its calls; has done {one.completed}{last}{stopped}{ended}"

    def _where(self, one: Standing) -> str:
        if not one.waits or one.peer < 0:
            return ""
        if one.kind == at.FUSED:
            return ", in the node's kernel"
        phase, lane, segment, number, step = one.place
        place = f"phase {phase}, lane {lane}, segment {segment}, round {number}, step {step}"
        return f", {place}, {ACTS.get(one.kind, 'with')} rank {one.peer}"

    def waited_for(self, one: Standing) -> list[int]:
        """The ranks without which this one cannot go on, as far as they are known here."""
        if not one.waits:
            return []
        seq = max(one.published, one.completed + 1)
        late = [each.rank for each in self.ranks if each.published < seq and each is not one]
        if one.peer < 0 or one.kind == at.FUSED:
            return late or [each.rank for each in self.ranks if each is not one and not each.alive]
        return [one.peer]

    def divergence(self) -> str:
        """The first call that ranks made differently, or who has not made one that others have."""
        oldest = max((each.published for each in self.ranks), default=0) - st.HISTORY
        newest = max((each.published for each in self.ranks), default=0)
        for seq in range(max(1, oldest), newest + 1):
            made = {i: self.snapshot.entry(i, seq)[1 : 1 + st.COMPARED_WORDS] for i in range(self.snapshot.node_size)}
            kinds = Counter(tuple(words) for words in made.values() if words)
            if len(kinds) > 1:
                usual = kinds.most_common(1)[0][0]
                odd = [i for i, words in made.items() if words and tuple(words) != usual]
                first = next(i for i, words in made.items() if tuple(words) == usual)
                return (
                    f"the first to diverge: {ranks_named(self.ranks[i].rank for i in odd)}, in call {seq}: "
                    f"{self.call(odd[0], seq)}, where {ranks_named([self.ranks[first].rank])} has "
                    f"{self.call(first, seq)}"
                )
        behind = [each.rank for each in self.ranks if each.published < newest]
        if behind and any(each.inside for each in self.ranks):
            return f"the first to be missing: {ranks_named(behind)}, in call {newest}"
        return ""

    def history(self) -> list[str]:
        """The last calls, and how long each rank has waited in them, where it has."""
        newest = max((each.published for each in self.ranks), default=0)
        lines = []
        for seq in range(max(1, newest - SHOWN_CALLS + 1), newest + 1):
            kinds: dict[str, list[str]] = {}
            for i, one in enumerate(self.ranks):
                if words := self.snapshot.entry(i, seq):
                    began = words[st.CAME_AT] or words[st.WAITED_FROM]
                    when = f" from {self.ago(began)} ago" if began else ""
                    kinds.setdefault(self.call(i, seq), []).append(f"rank {one.rank}{when}")
            lines += [f"call {seq}: {what}: {', '.join(who)}" for what, who in kinds.items()]
        return lines


def described(words: Sequence[int]) -> str:
    """A call as a person made it, from the board's words."""
    what = fields(list(words))
    if what["collective"] == BARRIER:
        return BARRIER
    op = f" {what['op']}" if what["op"] != NO_OP else ""
    root = f" from or to rank {what['root']}" if what["root"] else ""
    return f"{what['collective']}{op} of {what['count']} {what['dtype']} by {what['algorithm']}{root}"


def ranks_named(ranks: Iterable[int]) -> str:
    """ranks 0-3, 5"""
    there = sorted(ranks)
    cuts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(there)) if b > a + 1), len(there)]
    parts = [there[a:b] for a, b in pairwise(cuts)]
    named = ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts if part)
    return f"rank{'s' if len(there) > 1 else ''} {named}"


def report(snapshots: Sequence[Snapshot], *, history: bool = False) -> str:
    """What the communicators of one job, or of one process, are at. history: with the last calls of each."""
    now = time.monotonic_ns()
    told = [Told(i + 1, each, now) for i, each in enumerate(sorted(snapshots, key=lambda s: s.head[MONOTONIC_NS]))]
    processes = {one.process for each in told for one in each.ranks}
    dead = sum(not lives(process) for process in processes)
    lines = [f"{len(processes)} processes on {socket.gethostname()}{f', {dead} of them ended' if dead else ''}"]
    for each in told:
        made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.snapshot.head[WALL_NS] / 1e9))
        here = each.snapshot.node_size
        where = "" if here == each.snapshot.comm_size else f", {here} of them here"
        lines.append(f"communicator {each.number}: {each.snapshot.comm_size} ranks{where}, made {made}")
        alike: dict[str, list[int]] = {}
        for i, one in enumerate(each.ranks):
            alike.setdefault(each.says(i), []).append(one.rank)
        lines += [f"  {ranks_named(ranks)}: {text}" for text, ranks in alike.items()]
        if diverged := each.divergence():
            lines.append(f"  {diverged}")
        if history:
            lines += [f"  {line}" for line in each.history()]
    return "\n".join([*lines, *chains(told)])


# ---------------------------------------------------------------- who waits for whom
def chains(told: Sequence[Told]) -> list[str]:
    """Where waiting ends: at processes that wait for nobody, or in a circle."""
    waits: dict[Process, tuple[str, list[Process]]] = {}
    names: dict[Process, str] = {}
    for each in told:
        for one in each.ranks:
            names.setdefault(one.process, f"rank {one.rank} (process {one.process[0]})")
            if peers := each.waited_for(one):
                there = [each.by_rank[peer].process for peer in peers if peer in each.by_rank]
                waits.setdefault(one.process, (f"communicator {each.number}", there))
    lines = []
    for path in sorted({ends_at(process, waits) for process in waits}, key=len):
        if path and path[0] == path[-1] and len(path) > 1:
            said = ", ".join(f"{names[a]} waits in {waits[a][0]} for {names[b]}" for a, b in pairwise(path))
            lines.append(f"a circle: {said}")
        elif path:
            waiting = sum(ends_at(process, waits)[-1:] == path[-1:] for process in waits)
            state = "waits for nobody" if lives(path[-1]) else "has ended"
            line = f"waited for in the end, by {waiting}: {names[path[-1]]}, which {state}"
            if line not in lines:
                lines.append(line)
    return lines


def ends_at(process: Process, waits: dict[Process, tuple[str, list[Process]]]) -> tuple[Process, ...]:
    """The end of a chain, as one process, or a circle, from its smallest member round to it again; () where unknown."""
    seen = [process]
    while seen[-1] in waits:
        peers = waits[seen[-1]][1]
        if not peers:
            return ()
        following = next((peer for peer in peers if peer not in waits), peers[0])
        if following in seen:
            circle = seen[seen.index(following) :]
            turn = circle.index(min(circle))
            return (*circle[turn:], *circle[:turn], circle[turn])
        seen.append(following)
    return (seen[-1],)


def jobs(snapshots: Iterable[Snapshot]) -> list[list[Snapshot]]:
    """Records that share a process, hence belong to one job."""
    groups: list[tuple[set[Process], list[Snapshot]]] = []
    for snapshot in snapshots:
        processes, together = set(snapshot.processes), [snapshot]
        for group in [group for group in groups if group[0] & processes]:
            groups.remove(group)
            processes, together = processes | group[0], group[1] + together
        groups.append((processes, together))
    return [together for _, together in groups]
