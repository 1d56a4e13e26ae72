"""Ranks that meet in a store: here as threads of one process, each with peers of its own."""

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import msgspec
import pytest

from collectives.errors import CollectiveTimeout, LaunchError, MismatchError, PeerLost, UnsupportedError
from collectives.native import descriptor, window
from collectives.native.window import SharedWindow
from collectives.ranks import store_peers
from collectives.ranks.store_peers import Process, born, join

SOON = 60  # seconds: a guard against hangs, on a busy machine
SHORT = 0.6  # seconds that a rank is waited for which never comes


class Store:
    """As PyTorch's HashStore."""

    def __init__(self, removes=True):
        self.held: dict[str, bytes] = {}
        self.lock = threading.Lock()
        if removes:
            self.delete_key = lambda key: self.held.pop(key, None)

    def set(self, key, value):
        with self.lock:
            self.held[key] = value

    def get(self, key):
        return self.held[key]

    def check(self, keys):
        return all(key in self.held for key in keys)


def on_ranks(size, act):
    """What `act(rank)` gives, or raises, on every rank."""

    def attempt(rank):
        try:
            return act(rank)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            return error

    with ThreadPoolExecutor(size) as threads:
        return [each.result(SOON) for each in [threads.submit(attempt, rank) for rank in range(size)]]


def meeting(size, act, store=None, prefix="p", timeout=SOON):
    """What `act(peers)` gives on each of the ranks that have met."""
    store = store or Store()

    def enter(rank):
        peers = join(store, rank, size, prefix, timeout)
        found = act(peers)
        peers.free()
        return found

    return on_ranks(size, enter)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ranks_tell_each_other_bytes_and_numbers(size):
    def act(peers):
        said = peers.exchange(b"x" * (100 * peers.rank))
        return said, peers.words(peers.rank, -(1 << 62)), peers.agree(peers.rank != 1), peers.agree(True)

    numbers = [(rank, -(1 << 62)) for rank in range(size)]
    expected = [b"x" * (100 * rank) for rank in range(size)], numbers, size == 1, True
    assert meeting(size, act) == [expected] * size


def test_groups_are_ordered_by_key_and_met_by_their_own_ranks():
    def act(peers):
        part = peers.split(peers.rank % 2 if peers.rank < 5 else None, -peers.rank)
        if part is None:
            return None
        again = part.split(0, part.rank)
        found = [int(said) for said in again.exchange(str(peers.rank).encode())]
        again.free()
        part.free()
        return found

    assert meeting(6, act) == [[4, 2, 0], [3, 1], [4, 2, 0], [3, 1], [4, 2, 0], None]


def test_one_prefix_serves_one_group_after_another_and_beside_it():
    store = Store()

    def act(peers):
        other = join(store, peers.rank, 2, "p", SOON)
        said = [peers.exchange(b"first"), other.exchange(b"second"), peers.exchange(b"first")]
        other.free()
        return said

    for _ in range(2):
        assert meeting(2, act, store) == [[[b"first"] * 2, [b"second"] * 2, [b"first"] * 2]] * 2


def test_only_who_is_which_rank_stays_in_the_store():
    store = Store()
    meeting(3, lambda peers: [peers.exchange(b"1"), peers.host().free()], store)
    assert sorted(store.held) == ["p/rank/0", "p/rank/1", "p/rank/2"]
    assert meeting(2, lambda peers: peers.exchange(b"1"), Store(removes=False)) == [[b"1"] * 2] * 2


def test_calls_under_way_go_on_while_ranks_wait():
    turns = [0, 0]

    def act(rank):
        def turn():
            turns[rank] += 1

        peers = join(store, rank, 2, "p", SOON, turn)
        if rank:
            time.sleep(0.2)
        peers.meet()

    store = Store()
    on_ranks(2, act)
    assert turns[0] > 3


# ---------------------------------------------------------------- what goes wrong
def test_ranks_that_never_come_are_named():
    store = Store()
    early = on_ranks(2, lambda rank: join(store, 2 * rank, 4, "here", SHORT))
    for error in early:
        assert isinstance(error, LaunchError)
        assert str(error).startswith(f"rank 1, rank 3 of 4 did not come within {SHORT} s to here/1 in the store: start")


def test_a_rank_that_stays_away_later_is_named():
    error, _ = meeting(2, lambda peers: peers.exchange(b"x") if peers.rank == 0 else None, timeout=SHORT)
    assert isinstance(error, CollectiveTimeout)
    assert str(error) == f"rank 0: rank 1 did not come within {SHORT} s"


def test_a_rank_that_has_died_is_named():
    def act(peers):
        if peers.rank == 0:
            peers.ranks = [*peers.ranks[:1], Process(2, peers.ranks[1].host, os.getpid(), born(os.getpid()) - 1)]
            peers.exchange(b"x")

    error, _ = meeting(2, act)
    assert isinstance(error, PeerLost)
    assert str(error) == "rank 0: rank 1 ended while ranks were meeting; see its own output"


def test_sizes_that_differ_are_named_at_once():
    store, began = Store(), time.monotonic()
    for error in on_ranks(2, lambda rank: join(store, rank, 2 + rank, "p", SOON)):
        assert isinstance(error, MismatchError)
        assert "ranks disagree on size (rank 0: 2, rank 1: 3); give all ranks the same" in str(error)
    assert time.monotonic() - began < SOON / 2


def test_a_rank_is_one_process():
    store = Store()
    parent = Process(1, store_peers.this_host(), os.getppid(), born(os.getppid()))
    store.set("p/rank/0", msgspec.json.encode(parent))
    with pytest.raises(LaunchError, match=f"rank 0 is taken: process {parent.pid} has it at 'p' in this store; give"):
        join(store, 0, 1, "p", SHORT)
    store.set("p/rank/0", msgspec.json.encode(msgspec.structs.replace(parent, born=1)))  # one that has ended
    join(store, 0, 1, "p", SHORT)


def test_two_that_take_a_rank_at_once_are_found_out():
    other = Process(1, store_peers.this_host(), os.getppid(), born(os.getppid()), generation=1)

    class Overwritten(Store):
        def set(self, key, value):
            super().set(key, b"=" + msgspec.json.encode(other) if key == "p/1/0/0" else value)

    with pytest.raises(LaunchError, match=f"two processes took one rank at once; process {os.getpid()} is rank 0; "):
        join(Overwritten(), 0, 1, "p", SHORT)


def test_ranks_of_other_hosts_are_named_with_the_way(monkeypatch):
    hosts = iter(["one", "other", "one"])
    monkeypatch.setattr(store_peers, "this_host", lambda: next(hosts))
    found = meeting(3, lambda _: None)
    assert [type(error) for error in found] == [UnsupportedError] * 3
    (said,) = {str(error) for error in found}
    assert "and rank 0's host, or container, is not that of rank " in said
    assert "ranks of several nodes need MPI: start them with mpirun, mpiexec or srun; under torchrun" in said


@pytest.mark.parametrize("rank, size", [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_is_one_of_the_group(rank, size):
    with pytest.raises(ValueError, match=f"rank {rank} is not one of {size} ranks"):
        join(Store(), rank, size, "p", SHORT)


def test_what_is_no_store_is_refused():
    with pytest.raises(TypeError, match=r"store is a dict, which has no set\(\); pass a torch.distributed.Store"):
        join({}, 0, 1, "p", SHORT)


def test_what_others_keep_in_the_store_is_not_taken_for_a_rank():
    store = Store()
    store.set("p/rank/0", b"\x80\x04N.")
    with pytest.raises(LaunchError, match="the store holds something else than rank 0: "):
        join(store, 0, 1, "p", SHORT)


def test_a_store_that_breaks_is_named_but_may_be_left():
    class Breaking(Store):
        broken = False

        def check(self, keys):
            if self.broken:
                raise RuntimeError("Connection reset by peer")
            return super().check(keys)

    store = Breaking()
    peers = join(store, 0, 1, "p", SHORT)
    store.broken = True
    with pytest.raises(PeerLost, match="rank 0: the store does not answer: Connection reset by peer"):
        peers.exchange(b"x")
    peers.free()


# ---------------------------------------------------------------- memory
def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_window_is_the_same_memory_on_all_ranks(size):
    before = descriptors()

    def act(peers):
        made = SharedWindow.create(peers, 100_000)
        made.memory[peers.rank] = 10 + peers.rank
        peers.meet()
        seen = bytes(made.memory[:size])
        peers.meet()
        return seen, made.address % 4096, len(made.memory)

    assert meeting(size, act) == [(bytes(range(10, 10 + size)), 0, 100_000)] * size
    assert descriptors() == before


def test_a_window_without_room_is_refused_by_all_ranks():
    found = meeting(3, lambda peers: SharedWindow.create(peers, 1 << 55))
    assert {str(error) for error in found} == {str(found[0])}
    assert isinstance(found[0], UnsupportedError)
    assert f"rank 0 cannot make shared memory: {1 << 55} bytes are asked for, and " in str(found[0])


def test_a_rank_that_cannot_map_is_named_on_all(monkeypatch):
    before = descriptors()

    def refuse(end):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(descriptor, "receive", refuse)
    found = meeting(2, lambda peers: SharedWindow.create(peers, 100))
    assert [str(error) for error in found] == ["rank 1 cannot pass a descriptor on: Permission denied"] * 2
    assert descriptors() == before


def test_strangers_get_no_descriptor(monkeypatch):
    """Another user's process, and one that does not know the secret, come before the rank that does."""
    secret = b"s" * descriptor.SECRET_BYTES
    users = iter([False, True, True])
    monkeypatch.setattr(descriptor, "same_user", lambda _: next(users))
    with ExitStack() as stack:
        listener, *others = (
            stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) for _ in range(4)
        )
        listener.bind(b"\0treering-test-" + str(os.getpid()).encode())
        listener.listen()
        for other, said in zip(others, (secret, b"t" * descriptor.SECRET_BYTES, secret), strict=True):
            other.connect(listener.getsockname())
            other.send(said)
        descriptor.serve(listener, secret, listener.fileno())
        for other in others[:2]:
            with pytest.raises(OSError, match=r"rank 0 has closed it|reset"):
                descriptor.receive(other)
        fd = descriptor.receive(others[2])
        assert os.fstat(fd).st_ino == os.fstat(listener.fileno()).st_ino
        assert not os.get_inheritable(fd)
        os.close(fd)


def test_memory_that_nobody_can_resize_and_no_child_inherits():
    fd = window.allocate(4096)
    try:
        assert not os.get_inheritable(fd)
        for size in (100, 8192):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
    finally:
        os.close(fd)
