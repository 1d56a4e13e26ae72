"""Ranks of one node that find each other in a store, such as PyTorch's: no MPI, no launcher of its own.

What is said goes through keys of the store, one a rank and turn: PREFIX/GENERATION/TURN/RANK. Whoever says something in
one turn has heard all of the turn before, so when a turn is over, everybody's key of the one before can go. The
generation counts the groups that a rank has joined under one prefix: what is left of one is never taken for the next's.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import msgspec

from collectives.errors import CollectiveTimeout, LaunchError, MismatchError, PeerLost, UnsupportedError
from collectives.ranks.peers import Peers

PAUSES = 0.0005, 0.005  # seconds between two looks at the store, at first and in the end
LOOK_SECONDS = 0.2  # between two looks at the processes that are waited for
LEAVE_SECONDS = 2.0  # how long the first rank waits for others to leave, to remove the last keys
SAID = b"="  # before what is said, since not every store keeps nothing
ELSEWHERE = (
    "ranks of several nodes need MPI: start them with mpirun, mpiexec or srun; under torchrun "
    "integrations.torch_launch.init_process_group() gives MPICH and Intel MPI to them"
)
ONCE = "give each process a rank of its own, or groups prefixes of their own"


class Store(Protocol):
    """What is needed of a store; those of torch.distributed have it. `delete_key`, where there is one, is used too."""

    def set(self, key: str, value: bytes) -> Any: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


class Process(msgspec.Struct, frozen=True):
    """Who a rank is, how many ranks it expects, and how many groups it has joined under a prefix, this one included."""

    size: int
    host: str
    pid: int
    born: int
    generation: int = 0

    @classmethod
    def here(cls, size: int) -> "Process":
        return cls(size, this_host(), os.getpid(), born(os.getpid()))

    @property
    def lives(self) -> bool:
        return born(self.pid) == self.born


def this_host() -> str:
    """This boot of this machine, and the space in which process numbers mean something."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"


def born(pid: int) -> int:
    """When the process began, in the kernel's ticks since boot; -1 for one that has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return -1
    return -1 if state in b"ZX" else int(fields[18])


class StorePeers(Peers):
    """Ranks that `join` has brought together, or a part of them.

    base: what their keys begin with. ranks: who they are, once they have told. turn: lets calls under way go on.
    """

    def __init__(
        self,
        store: Store,
        base: str,
        rank: int,
        size: int,
        timeout: float,
        turn: Callable[[], None],
        ranks: Sequence[Process] = (),
    ):
        self.store, self.base, self.rank, self.size = store, base, rank, size
        self.timeout, self.turn, self.ranks = timeout, turn, ranks
        self._turns = 0

    # ------------------------------------------------------------ what Peers asks for
    def exchange(self, mine: bytes) -> list[bytes]:
        keys = self._keys(self._turns)
        self._ask("set", keys[self.rank], SAID + mine)
        self._wait_for(keys)
        everyone = [bytes(self._ask("get", key)).removeprefix(SAID) for key in keys]
        if self._turns:
            self._remove(self._keys(self._turns - 1)[self.rank])
        self._turns += 1
        return everyone

    def meet(self) -> None:
        self.exchange(b"")

    def split(self, color: int | None, key: int) -> "StorePeers | None":
        said = self.words(color is not None, color or 0, key)
        if color is None:
            return None
        mine = sorted((at, rank) for rank, (some, to, at) in enumerate(said) if some and to == color)
        part = [rank for _, rank in mine]
        base = f"{self.base}/{self._turns}.{part[0]}"
        ranks = [self.ranks[rank] for rank in part]
        return StorePeers(self.store, base, part.index(self.rank), len(part), self.timeout, self.turn, ranks)

    def host(self) -> "StorePeers":
        part = self.split(0, self.rank)
        assert part is not None
        return part

    def free(self) -> None:
        """Whoever leaves listens no more. The first rank removes the last keys when it has seen all others leave."""
        left = [f"{self.base}/left/{rank}" for rank in range(1, self.size)]
        until = time.monotonic() + LEAVE_SECONDS
        with suppress(PeerLost):  # a store that is gone has no keys
            if self.rank:
                self._ask("set", left[self.rank - 1], SAID)
                return
            while left and not self._ask("check", left):
                if time.monotonic() > until:
                    return
                time.sleep(PAUSES[0])
            for key in (*left, *self._keys(self._turns - 1)):
                self._remove(key)

    def end_job(self) -> None:
        for each in self.ranks:
            with suppress(OSError):  # it has ended
                if each.pid != os.getpid() and each.lives:
                    os.kill(each.pid, signal.SIGTERM)
                    os.kill(each.pid, signal.SIGCONT)  # or one that is stopped would not see it

    # ------------------------------------------------------------ the store
    def _keys(self, turn: int) -> list[str]:
        return [f"{self.base}/{turn}/{rank}" for rank in range(self.size)]

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            return getattr(self.store, method)(*args)
        except RuntimeError as error:  # as torch's stores raise them all
            raise PeerLost(f"rank {self.rank}: the store does not answer: {error}") from error

    def _remove(self, key: str) -> None:
        with suppress(AttributeError, RuntimeError):  # not every store can
            self.store.delete_key(key)  # type: ignore[attr-defined]

    def _wait_for(self, keys: list[str]) -> None:
        began = looked = time.monotonic()
        pause = PAUSES[0]
        while not self._ask("check", keys):
            self.turn()
            time.sleep(pause)
            pause, now = min(1.5 * pause, PAUSES[1]), time.monotonic()
            if now - looked > LOOK_SECONDS:
                looked = now
                self._look([rank for rank, key in enumerate(keys) if not self._ask("check", [key])], now - began)

    def _look(self, missing: list[int], waited: float) -> None:
        """At those who have said nothing yet: are they alive, and is there time?"""
        self.look()
        if not self.ranks:
            self._compare_sizes([rank for rank in range(self.size) if rank not in missing])
        elif dead := [rank for rank in missing if not self.ranks[rank].lives]:
            raise PeerLost(f"rank {self.rank}: {named(dead)} ended while ranks were meeting; see its own output")
        if missing and waited > self.timeout:
            if self.ranks:
                raise CollectiveTimeout(f"rank {self.rank}: {named(missing)} did not come within {self.timeout:g} s")
            raise LaunchError(
                f"{named(missing)} of {self.size} did not come within {self.timeout:g} s to {self.base} in the store: "
                "start as many processes as size says, each with a rank of its own and with the same store and prefix"
            )

    # ------------------------------------------------------------ getting to know one another
    def introduce(self, me: Process) -> None:
        """Find out who the others are. LaunchError, MismatchError, UnsupportedError where they are no group."""
        said = self.exchange(msgspec.json.encode(me))
        self._compare_sizes(range(self.size))
        self.ranks = [process(each, f"rank {rank}") for rank, each in enumerate(said)]
        seen = self.exchange(blake2b(b"".join(said)).digest())
        if self.ranks[self.rank] != me or len(set(seen)) > 1:
            raise LaunchError(f"two processes took one rank at once; process {me.pid} is rank {self.rank}; {ONCE}")
        elsewhere = [rank for rank, each in enumerate(self.ranks) if each.host != self.ranks[0].host]
        if elsewhere:
            raise UnsupportedError(
                f"ranks that meet in a store must share memory, and rank 0's host, or container, is not that of "
                f"{named(elsewhere)}; {ELSEWHERE}"
            )

    def _compare_sizes(self, ranks: Sequence[int]) -> None:
        keys = self._keys(0)
        sizes = [process(self._ask("get", keys[rank]).removeprefix(SAID), f"rank {rank}").size for rank in ranks]
        if len(set(sizes)) > 1:
            raise MismatchError("size", ranks, sizes, "in the store", "give all ranks the same")


def join(
    store: Any, rank: int, size: int, prefix: str, timeout: float, turn: Callable[[], None] = lambda: None
) -> StorePeers:
    """The ranks of one node that call this with the same store, size and prefix, each with a rank of its own.

    timeout: seconds that any rank may be late. Collective; LaunchError where ranks are missing or taken twice,
    MismatchError where they disagree on size, UnsupportedError where they are on several hosts.
    """
    lacks = [name for name in ("set", "get", "check") if not callable(getattr(store, name, None))]
    if lacks:
        raise TypeError(f"store is a {type(store).__name__}, which has no {lacks[0]}(); pass a torch.distributed.Store")
    if size < 1 or not 0 <= rank < size:
        raise ValueError(f"rank {rank} is not one of {size} ranks, 0 to {size - 1}")
    me, key, generation = Process.here(size), f"{prefix}/rank/{rank}", 1
    alone = StorePeers(store, prefix, rank, size, timeout, turn)
    if alone._ask("check", [key]):
        last = process(alone._ask("get", key), f"rank {rank}")
        generation += last.generation
        if (last.pid, last.born) != (me.pid, me.born) and last.lives:
            raise LaunchError(f"rank {rank} is taken: process {last.pid} has it at {prefix!r} in this store; {ONCE}")
    me = msgspec.structs.replace(me, generation=generation)
    alone._ask("set", key, msgspec.json.encode(me))
    peers = StorePeers(store, f"{prefix}/{generation}", rank, size, timeout, turn)
    peers.introduce(me)
    return peers


def process(said: bytes, who: str) -> Process:
    try:
        return msgspec.json.decode(said, type=Process)
    except msgspec.MsgspecError as error:
        raise LaunchError(f"the store holds something else than {who}: {error}; take another prefix") from None


def named(ranks: Sequence[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks)
