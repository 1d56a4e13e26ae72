"""What the first ranks of other nodes are calling: they tell each other when a call waits long."""

import os
import time
from array import array
from typing import Any

from collectives.native import layout as st

PARTING_SECONDS = 5.0


class Hosts:
    """What the first ranks of other nodes are calling: asked only when a call waits long, by messages of its own."""

    CALL_WORDS = 3 + st.COMPARED_WORDS  # as Program.published
    WORDS = 3 + CALL_WORDS  # mark, rank and status before them
    NOTHING, OVER = [0] * CALL_WORDS, -1  # words of no call, and the status of a rank's last note

    def __init__(self, control: Any, rank: int, leaders: tuple[int, ...]):
        """Collective over the mpi4py communicator `control`."""
        from mpi4py import MPI

        self.control, self.rank, self.leaders = control, rank, leaders
        # MPI libraries use a freed communicator's channel again, and what nobody has read may still be in it.
        mark = array("q", [int.from_bytes(os.urandom(7), "little")])
        control.Bcast([mark, MPI.INT64_T], root=0)
        self.mark = mark[0]
        self.other: tuple[int, list[int]] | None = None  # who called something else, and what
        self.stopped: tuple[int, int] | None = None  # who has given up, and why
        self.calls: dict[int, int] = {}  # the number of the call that others were last heard to wait in
        self._told: list[int] = []
        self._requests: list[Any] = []
        self._over: set[int] = set()  # whose last note has been read

    @property
    def peers(self) -> tuple[int, ...]:
        """Who tells me, and whom I tell."""
        return tuple(peer for peer in self.leaders if peer != self.rank) if self.rank in self.leaders else ()

    def tell(self, words: list[int], status: int) -> None:
        """Send what this node calls to the first rank of each other one, once."""
        from mpi4py import MPI

        note = [self.mark, self.rank, status, *words]
        if note == self._told:
            return
        self._told = note
        self._requests = [(request, message) for request, message in self._requests if not request.Test()]
        for peer in self.peers:
            message = array("q", note)
            self._requests.append((self.control.Isend([message, MPI.INT64_T], dest=peer), message))

    def disagree(self, words: list[int], status: int) -> bool:
        """Tell, and read what others have told: True if one calls something else, or has stopped."""
        self.tell(words, status)
        self.read(words)
        return self.other is not None

    def read(self, words: list[int]) -> None:
        """What has come from others, while this node calls what `words` say."""
        for peer in self.peers:
            # Not from any source: MPICH's Recv after such a probe waited for ever, over TCP between two hosts.
            while peer not in self._over and self.control.Iprobe(source=peer):
                self._take(peer, words)

    def _take(self, peer: int, words: list[int]) -> None:
        """A note, which is compared with what this node calls."""
        from mpi4py import MPI

        message = array("q", [0] * self.WORDS)
        self.control.Recv([message, MPI.INT64_T], source=peer)
        mark, rank, status, *theirs = message
        if mark != self.mark:
            return
        if status == self.OVER:
            self._over.add(rank)
            return
        self.calls[rank] = theirs[0]
        if theirs[0] == words[0] and theirs != words:
            self.other = rank, theirs[1:]
        elif status:
            self.stopped = rank, status

    def part(self) -> None:
        """Read all that has been told and not been read: MPI should not end with messages that nobody takes.

        Collective, when all calls have ended well; not for long, as a rank may have failed and not come.
        """
        until = time.monotonic() + PARTING_SECONDS
        self.tell(self.NOTHING, self.OVER)
        while not self._over.issuperset(self.peers) and time.monotonic() < until:
            self.read(self.NOTHING)
            time.sleep(1e-4)
        while not all(request.Test() for request, _ in self._requests) and time.monotonic() < until:
            time.sleep(1e-4)
