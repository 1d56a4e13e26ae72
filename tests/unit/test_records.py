"""Records of the flight recorder: who may read them, when they go, and what is read in them."""

import os
import time

import pytest

from collectives.flight import records
from collectives.flight.diagnosis import fingerprint
from collectives.flight.records import HEADER_BYTES, HOST, MAGIC, MARK, Record, Snapshot
from collectives.flight.report import jobs, ranks_named, report
from collectives.native import layout as st
from collectives.ranks.peers import Peers
from collectives.ranks.store_peers import born


class Alone(Peers):
    rank, size = 0, 1

    def exchange(self, mine):
        return [mine]

    def meet(self):
        pass

    def split(self, color, key):
        return self if color is not None and key == 0 else None

    def host(self):
        return self

    def free(self):
        pass

    def end_job(self):
        pass


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv(records.FOLDER, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "treering"


def made():
    return Record.create(Alone(), Alone())


def test_only_its_user_may_read_a_record_and_closing_removes_it(folder):
    record = made()
    assert record.path is not None
    assert record.path.parent == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    assert record.path.stat().st_mode & 0o777 == 0o600
    [(path, snapshot)] = records.found()
    assert path == record.path
    assert snapshot is not None
    assert snapshot.processes[0][0] == os.getpid()
    assert snapshot.alive
    record.forget()
    assert not folder.exists()  # the last record takes the folder with it
    assert made().path is not None


@pytest.mark.parametrize("trouble", ["link", "others may write", "a file", "another user's"])
def test_a_folder_that_is_not_ours_alone_is_not_used(folder, trouble, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if trouble == "link":
        folder.symlink_to(elsewhere)
    elif trouble == "a file":
        folder.write_text("")
    else:
        folder.mkdir()
        folder.chmod(0o777 if trouble == "others may write" else 0o700)
    own = folder.parent
    monkeypatch.setattr(records, "folders", lambda: [folder])
    if trouble == "another user's":
        monkeypatch.setattr(os, "geteuid", lambda: own.stat().st_uid + 1)
    record = made()
    assert record.path is None  # memory without a name serves as well
    assert record.snapshot() is not None
    assert list(elsewhere.iterdir()) == []
    record.forget()


def test_a_link_in_the_place_of_a_record_is_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_bytes(bytes(1000))
    link = tmp_path / f"x{records.SUFFIX}"
    link.symlink_to(target)
    assert records.open_file(link, 1000) is None
    assert records.open_file(target, 999) is None
    assert records.open_file(target, 1000) is not None
    assert list(records.records_in(tmp_path)) == []


def words_of(ranks, host=None):
    """A record's words: for each rank its process, and what it called in turn."""
    words = [0] * 8
    words[:8] = [MARK, len(ranks), len(ranks), records.host_mark() if host is None else host, 1, 1, 7, 0]
    for rank, (process, calls) in enumerate(ranks):
        board = [0] * (st.BOARD_BYTES // 8)
        board[st.PROCESS], board[st.BORN] = process
        board[st.RANK] = rank
        board[st.PUBLISHED], board[st.COMPLETED] = len(calls), len(calls) - 1
        for seq, call in enumerate(calls, 1):
            at = 8 * (st.BOARD_LINES + seq % st.HISTORY)
            board[at : at + 5] = [seq, *call]
        words += board
    return words


def snapshot_of(ranks):
    found = Snapshot.of(b"".join(word.to_bytes(8, "little", signed=True) for word in words_of(ranks)))
    assert found is not None
    return found


def call(count, op="sum"):
    return fingerprint("allreduce", "float32", op, 0, count, "ring", {})


def test_the_next_start_removes_what_ended_runs_have_left_and_nothing_else(folder):
    kept = made()
    me, ended = (os.getpid(), born(os.getpid())), (os.getpid(), 1)  # one that had this number long ago
    files = {
        "ended": words_of([(ended, [call(3)])]),
        "lives": words_of([(ended, []), (me, [])]),
        "of another space of process numbers": words_of([(ended, [])], host=5),
        "being made": [],
        "never made": [],
    }
    for name, words in files.items():
        path = folder / f"{name}{records.SUFFIX}"
        path.write_bytes(b"".join(word.to_bytes(8, "little", signed=True) for word in words))
        if name == "never made":
            os.utime(path, (0, time.time() - 1000))
    made()
    left = {path.name.removesuffix(records.SUFFIX) for path in folder.iterdir()}
    assert {"ended", "never made"} & left == set()
    assert {"lives", "of another space of process numbers", "being made", kept.path.name.split(".")[0]} <= left


def test_a_report_names_the_first_to_diverge_and_who_ended():
    me, ended = (os.getpid(), born(os.getpid())), (1 << 40, 1)
    same = [call(5), call(6)]
    said = report([snapshot_of([(me, same), (me, same), (ended, [call(5), call(6, "max")])])], history=True)
    assert "2 processes on " in said
    assert "1 of them ended" in said
    assert "ranks 0-1: in call 2, allreduce sum of 6 float32 by ring\n" in said
    assert "the first to diverge: rank 2, in call 2: allreduce max of 6 float32 by ring, where rank 0 has" in said
    assert "call 2: allreduce max of 6 float32 by ring: rank 2" in said
    assert "rank 2: in call 2, allreduce max of 6 float32 by ring, has ended" in said


def test_what_is_no_record_is_not_read():
    words = words_of([((1, 1), [])])
    whole = b"".join(word.to_bytes(8, "little", signed=True) for word in words)
    assert Snapshot.of(whole) is not None
    for wrong in (b"", whole[:-8], whole[:HEADER_BYTES], whole + b"12345678", b"\xff" * len(whole)):
        assert Snapshot.of(wrong) is None
    assert words[MAGIC] == MARK
    assert words[HOST] == records.host_mark()


def test_records_of_one_job_share_a_process():
    one, other, third = ((n, n) for n in (1, 2, 3))
    a, b, c = (snapshot_of([(p, []), (q, [])]) for p, q in ((one, one), (other, third), (one, other)))
    assert jobs([a, b]) == [[a], [b]]
    assert len(jobs([a, b, c])) == 1


def test_ranks_are_named_shortly():
    assert [ranks_named(ranks) for ranks in ([3], [2, 0, 1], [0, 2, 3, 9])] == [
        "rank 3",
        "ranks 0-2",
        "ranks 0, 2-3, 9",
    ]
