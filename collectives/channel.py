"""One communicator's calls: their order, the peers' lives, and what becomes of them when one fails."""

import os
import select
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from collectives.errors import CollectiveError, CollectiveTimeout, CommunicatorBroken, PeerLost, UnsupportedError
from collectives.flight import diagnosis, hosts, recorder, sites
from collectives.native import layout as st
from collectives.native.endpoint import Endpoint
from collectives.native.program import Program
from collectives.ranks.launch import Group
from collectives.symmetric import Regions
from collectives.topology import discover

if TYPE_CHECKING:
    from collectives.engine import Work

FRUITLESS_PASSES = 100  # of compiled code, each of which yielded
NAP_SHARE, MOST_NAP_SECONDS = 1 / 16, 1e-3  # of the time waited so far
WATCH_SECONDS = 0.05  # between two looks at the peers' processes
GRACE_SECONDS = 0.5  # a peer that has ended may have left what we wait for behind
HOSTS_SECONDS = 0.2  # after which a call that waits asks the other nodes what they are calling


class Channel:
    """The calls of one communicator, first to last, and whether it still can be used."""

    def __init__(self, group: Group, spin: int):
        self.comm, self.node = group.comm, group.node
        self.endpoint = Endpoint(group.comm, group.node, spin)
        self.regions = Regions(group, self.endpoint)
        self.topology = discover(group.comm, group.node, self.endpoint.lanes > 0)
        if group.comm.mpi is None and "mpi" in self.topology.links:
            raise UnsupportedError(
                f"these {group.comm.size} ranks would need MPI for some of their messages, and met without it: leave "
                "TREERING_LINKS and TREERING_RANKS_PER_NODE unset and have at most 64 ranks, or start with mpiexec"
            )
        self.ranks_of_node = self.topology.nodes[self.topology.node_of(group.comm.rank)]
        leaders = tuple(node[0] for node in self.topology.nodes)
        self.pending: deque[Work] = deque()
        self.broken: CollectiveError | None = None
        self.retired = ""  # why it runs nothing more, though nothing went wrong
        self.pinned: list[Any] = []  # buffers in which a late message may still land
        self.hosts = hosts.Hosts(group.control, group.comm.rank, leaders) if len(leaders) > 1 else None
        self._peers = watch_processes(self.endpoint.pids, self.ranks_of_node)
        self._looked, self._lost_since = 0.0, 0.0
        self.compares_sites = sites.compared()
        self.looks = self.compares_sites or group.comm.thread is not None  # before each call
        self._dead: list[int] = []
        self._meetings, self._gone_since = 0, 0.0
        group.comm.look = group.node.look = self.heed

    def watch(self, work: "Work") -> None:
        """While a call waits: is everyone it may wait for alive, and calling the same?"""
        now = time.monotonic()
        if work.ended or now - self._looked < WATCH_SECONDS:
            return
        self._looked = now
        dead = self.ended()
        if dead:
            self._lost_since = self._lost_since or now
            if now - self._lost_since > GRACE_SECONDS:
                self.fail_head(st.PEER_LOST, dead)
        if self.hosts is not None and now - work.began > HOSTS_SECONDS and self.pending:
            head = self.pending[0].program
            if self.hosts.disagree(head.published, self.status):
                self.fail_head(st.MISMATCH)
            elif self.hosts.stopped is not None:
                self.fail_head(st.STOPPED)

    def site(self) -> int:
        """Where in the user's program we are, where ranks compare it."""
        return sites.site_of_caller() if self.compares_sites else 0

    def stamp(self) -> None:
        """From now on publish when this rank comes to each call. All ranks of the node must, for `arrivals` to know."""
        self.endpoint.words[st.STAMPS] = 1

    def arrivals(self, sequence: int) -> dict[int, int] | None:
        """When each rank of the node came to a call, in nanoseconds of the clock of time.monotonic_ns().

        None where some rank has not said so, or the board has forgotten the call, which it does after some 16 more.
        """
        if not self.endpoint.has_board:
            return None
        found = {rank: self.endpoint.arrival(i, sequence) for i, rank in enumerate(self.ranks_of_node)}
        return None if 0 in found.values() else found

    def nap(self, idle_since: float) -> float:
        """Sleep a little where nothing moves, less than what has been waited already; since when nothing moves, or 0.

        Whoever is waited for gets the processor, and who sleeps keeps the scheduler's favour, unlike who yields.
        """
        if not self.pending or self.pending[0].program.state[st.IDLE_PASSES] < FRUITLESS_PASSES:
            return 0.0
        now = time.monotonic()
        if idle_since:
            time.sleep(min(MOST_NAP_SECONDS, (now - idle_since) * NAP_SHARE))
        return idle_since or now

    @property
    def status(self) -> int:
        """What this rank tells others: 0, or why it has stopped."""
        return int(self.endpoint.news(self.node.rank)[st.BOARD_STATUS]) if self.endpoint.has_board else 0

    def ended(self) -> list[int]:
        """Other ranks of the node whose processes have ended."""
        return sorted(self._ended_within(0))

    def has_ended(self, rank: int) -> bool:
        """Whether the process of another rank of the node has ended, or does so now."""
        grace = int(1000 * GRACE_SECONDS)  # memory goes a little before the process
        return rank in self._ended_within(grace)

    def _ended_within(self, milliseconds: int) -> list[int]:
        """The first ranks of the node whose processes end, or have ended."""
        peers = self._peers
        if not peers:
            return []
        poll = select.poll()  # threads may ask at a time, and an object may be used by one of them only
        for fd in peers:
            poll.register(fd, select.POLLIN)
        return [peers[fd] for fd, _ in poll.poll(milliseconds)]

    def fail_head(self, code: int, dead: list[int] | None = None) -> None:
        """Let the call under way fail."""
        from collectives.engine import ENGINE

        with ENGINE.lock:
            if self.pending and self.pending[0].program.running:
                state = self.pending[0].program.state
                state[st.STATUS], state[st.ERROR_CODE] = st.BROKEN, code
                self._dead = dead or []
                ENGINE._end(self)

    # ------------------------------------------------------------ what is no call
    @contextmanager
    def meeting(self, doing: str) -> Iterator[None]:
        """What all ranks do together. Where some do not come, the communicator is broken, and the error names them."""
        self._meetings += 1
        if self.endpoint.has_board:
            self.endpoint.news(self.node.rank)[st.MEETINGS] = self._meetings
        try:
            yield
        except (CollectiveTimeout, PeerLost) as error:
            missing = [rank for i, rank in enumerate(self.ranks_of_node) if self._met(i) < self._meetings]
            named = f"; {', '.join(f'rank {rank}' for rank in missing)} did not come" if missing else ""
            lost = type(error)(f"{doing}: {error}{named}")
            self.break_(st.TIMEOUT if isinstance(error, CollectiveTimeout) else st.PEER_LOST, lost)
            raise lost from error

    def _met(self, node_rank: int) -> int:
        return int(self.endpoint.news(node_rank)[st.MEETINGS]) if self.endpoint.has_board else self._meetings

    def heed(self) -> None:
        """Raise PeerLost where a rank that is met has ended, or given up: for some time, as it may have come before."""
        gone = [f"rank {rank} has ended; see its own output" for rank in self.ended()]
        gone += [f"rank {rank} {diagnosis.STATUS[status]}" for rank, status in diagnosis.stopped_ranks(self)]
        self._gone_since = (self._gone_since or time.monotonic()) if gone else 0.0
        if gone and time.monotonic() - self._gone_since > GRACE_SECONDS:
            raise PeerLost(", ".join(gone))

    def fail(self, work: "Work") -> CollectiveError:
        """The error of the call that has just ended badly; nothing can be called after it."""
        state = work.program.state
        code = int(state[st.ERROR_CODE])
        if code == st.PEER_LOST:
            gone = ", ".join(f"rank {rank}" for rank in self._dead)
            error: CollectiveError = PeerLost(f"{self.describe(work.program)}: {gone} has ended; see its own output")
        else:
            self.tell(code)
            error = diagnosis.explain(self, work.program, code, time.monotonic() - work.began)
        self.pinned.append((work.keep, work.program, [later.keep for later in self.pending]))
        self.break_(code, error)
        recorder.note(self, error)
        return error

    def tell(self, code: int) -> None:
        """Write on the board, and to the other nodes, that this rank has stopped."""
        if self.endpoint.has_board:
            news = self.endpoint.news(self.node.rank)
            news[st.BOARD_STATUS] = news[st.BOARD_STATUS] or code

    def leave(self) -> None:
        """This rank makes no more calls, and nothing was wrong; the last of the node to say so removes the record."""
        self.tell(st.LEFT)
        record, ranks = self.endpoint.record, range(self.node.size)
        if record is not None and all(record.board(i)[st.BOARD_STATUS] == st.LEFT for i in ranks):
            record.forget()

    def break_(self, code: int, error: CollectiveError) -> None:
        self.tell(code)
        if self.broken is None:
            self.broken = error
        if self.hosts is not None:
            head = self.pending[0].program if self.pending else None
            self.hosts.tell(head.published if head else self.hosts.NOTHING, code)

    def broken_now(self) -> CommunicatorBroken:
        if self.retired:
            return CommunicatorBroken(self.retired)
        error = CommunicatorBroken(f"this communicator failed before, and runs nothing more: {self.broken}")
        error.__cause__ = self.broken
        return error

    def retire(self, why: str) -> None:
        """No call starts after this one, be it a plan's, and nothing is wrong."""
        self.retired = why
        self.broken = self.broken_now()

    def describe(self, program: Program) -> str:
        return diagnosis.describe(self.topology.name(self.comm.rank), program)

    def part(self) -> None:
        """Nothing is left to tell other nodes, nor to hear of them. Collective."""
        if self.hosts is not None:
            self.hosts.part()

    def close(self) -> None:
        """Let go of what watching the others took; the record goes."""
        if self.broken is None:
            self.retire("this communicator is closed; make another one")
            if self.endpoint.record is not None and self.endpoint.record.creator:
                self.endpoint.record.forget()
        for fd in self._peers:
            os.close(fd)
        self._peers = {}


def watch_processes(pids: list[int], ranks: tuple[int, ...]) -> dict[int, int]:
    """A descriptor of each other process of the node that becomes readable when it ends: {descriptor: rank}."""
    found = {}
    for i, pid in enumerate(pids):
        if pid != os.getpid():
            try:
                found[os.pidfd_open(pid)] = ranks[i]
            except (OSError, AttributeError):  # another process namespace, or an old kernel: deadlines remain
                continue
    return found
