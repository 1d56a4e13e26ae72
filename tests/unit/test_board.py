"""Who has stopped, as the others of the node read it from the board: in time, and no sooner."""

from array import array

import pytest

from collectives.native import layout as st
from collectives.native.board import stopped

SECOND = 1_000_000_000
MY_CALL = 7


class Board:
    """A node's board and this rank's call, the seventh, as compiled code finds them."""

    def __init__(self, ranks: int = 3):
        self.news = array("q", bytes(st.BOARD_BYTES * ranks))
        self.comm = array("q", bytes(8 * st.COMM_HEADER))
        self.comm[st.NODE_SIZE], self.comm[st.BOARD] = ranks, self.news.buffer_info()[0]
        self.state = array("q", bytes(8 * st.STATE_HEADER))
        self.state[st.COMM], self.state[st.SEQ] = self.comm.buffer_info()[0], MY_CALL
        for rank in range(ranks):
            self.says(rank, completed=MY_CALL - 1)

    def says(self, rank: int, completed: int, status: int = 0) -> None:
        at = rank * st.BOARD_BYTES // 8
        self.news[at + st.PUBLISHED] = completed + (status != st.LEFT)
        self.news[at + st.COMPLETED], self.news[at + st.BOARD_STATUS] = completed, status

    def stops_me(self, now: int) -> bool:
        return bool(stopped(self.state.buffer_info()[0], now))


def test_nobody_has_stopped():
    assert not Board().stops_me(SECOND)


@pytest.mark.parametrize("status", [st.MISMATCH, st.TIMEOUT, st.INTERRUPTED, st.LEFT])
def test_who_has_not_done_its_part_stops_the_others_at_once(status):
    board = Board()
    board.says(2, MY_CALL - 1, status)
    assert board.stops_me(SECOND)


def test_who_has_left_after_its_part_never_does():
    board = Board()
    board.says(1, MY_CALL, st.LEFT)
    assert not board.stops_me(SECOND)
    assert not board.stops_me(100 * SECOND)


def test_who_has_failed_in_a_later_call_leaves_time_for_this_one_to_end():
    board = Board()
    board.says(1, MY_CALL, st.MISMATCH)
    assert not board.stops_me(SECOND)
    assert not board.stops_me(SECOND + st.OUTRUN_NS)
    assert board.stops_me(SECOND + st.OUTRUN_NS + 1)


def test_of_several_that_have_failed_the_one_in_this_call_counts():
    board = Board()
    board.says(1, MY_CALL + 3, st.STOPPED)
    board.says(2, MY_CALL - 1, st.MISMATCH)
    assert board.stops_me(SECOND)
