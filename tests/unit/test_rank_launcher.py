"""The tests' own launcher: what it reports, and that nothing survives it."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests import launch

HELLO = """
import sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
print(f"rank {comm.rank} of {comm.size} under {MPI.Get_library_version().split()[0]};", flush=True)
comm.Barrier()
"""
STUCK = """
import os, time, pathlib, sys
pathlib.Path(sys.argv[1], str(os.getpid())).touch()
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 0:
    MPI.COMM_WORLD.recv(source=1)  # never sent
time.sleep(600)
"""
DESERTER = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    open(sys.argv[1], "w").write(str(os.getpid()))
    time.sleep(600)
"""


def alive(pid: int) -> bool:
    """Whether the process runs; one that is dead and not yet collected by init does not."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_ranks_see_each_other(mpi):
    done = mpi.run(3, ["-c", HELLO])
    assert done.returncode == 0, done.stderr
    word = {"mpich": "MPICH", "openmpi": "Open", "impi": "Intel(R)"}[mpi.name]
    said = re.findall(r"rank \d of \d under [^;]+", done.stdout)
    assert sorted(said) == [f"rank {rank} of 3 under {word}" for rank in range(3)]


def test_a_hang_is_killed_and_says_where(mpi, tmp_path):
    before = launch.shared_memory()
    with pytest.raises(launch.Hang) as caught:
        mpi.run(2, ["-c", STUCK, str(tmp_path)], timeout=5)
    assert 'File "<string>", line 6' in str(caught.value), "the stack of the waiting rank is missing"
    pids = [int(entry.name) for entry in tmp_path.iterdir()]
    assert len(pids) == 2
    assert not [pid for pid in pids if alive(pid)]
    until = time.monotonic() + 30  # others' launches may be starting or ending
    while new := (found := launch.shared_memory() - before) - launch.held(found):
        assert time.monotonic() < until, f"the MPI library's files are left: {new}"
        time.sleep(0.05)


def test_failure_fails_the_test(mpi):
    with pytest.raises(pytest.fail.Exception, match="No module named tests"):
        mpi(1, "absent")


def test_a_process_that_left_the_session_is_killed_too(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "GRACE", 0.2)
    note = tmp_path / "pid"
    done = launch.run_command([sys.executable, "-c", DESERTER, str(note)], os.environ, timeout=20)
    assert done.returncode == 0
    assert "1 processes outlived their launcher" in done.stderr
    assert not alive(int(note.read_text()))


def test_a_missing_library_says_what_to_do():
    with pytest.raises(LookupError, match="make lam"):
        launch.run(1, ["-c", ""], mpi="lam")


def test_what_a_living_process_uses_in_shared_memory_is_no_leftover():
    """A semaphore, which was made under another name, and which others are to find by its own."""
    lock = multiprocessing.get_context("spawn").Lock()
    name = f"sem.{lock._semlock.name[1:]}"  # type: ignore[attr-defined]
    assert launch.held({name, "nothing"}) == {name}
    launch.remove_leftovers(launch.shared_memory() - {name})
    assert name in launch.shared_memory()


def test_a_folder_there_is_held_as_long_as_a_file_in_it_is():
    with tempfile.TemporaryDirectory(dir=launch.SHARED_MEMORY) as folder:
        name = Path(folder).name
        with open(Path(folder, "record"), "w"):
            assert launch.held({name}) == {name}
        assert launch.held({name}) == set()
