"""How long ranks that MPI has started wait for each other."""

import pytest

from collectives.errors import PeerLost
from collectives.ranks.mpi_peers import settled


class Later:
    """A request that is done when it has been asked so many times."""

    def __init__(self, times):
        self.times = times

    def Test(self):  # noqa: N802 - mpi4py's name
        self.times -= 1
        return self.times < 0


def test_what_others_do_not_come_to_is_given_up_in_time():
    turns = []
    assert settled(Later(3), 60, lambda: turns.append(1))
    assert len(turns) == 3
    assert not settled(Later(10**9), 0.01)


def test_a_look_at_the_others_may_end_the_wait():
    def look():
        raise PeerLost("rank 1 has ended")

    with pytest.raises(PeerLost, match="rank 1 has ended"):
        settled(Later(10**9), 60, look=look)
