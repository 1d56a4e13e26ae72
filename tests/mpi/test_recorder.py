"""What the flight recorder says of jobs that wait, fail or are killed."""

import os
import subprocess
import sys

import pytest

from collectives.flight import records
from tests import launch

pytestmark = pytest.mark.mpi
MAXIMUM = "allreduce max of 100 float32 by ring"


def doctor(folder, *flags):
    command = [sys.executable, "-m", "tuner.cli", "doctor", *flags]
    env = {**os.environ, records.FOLDER: str(folder), "PYTHONPATH": str(launch.ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=env).stdout


def test_a_killed_job_can_be_read_from_outside(mpich, tmp_path):
    done = mpich.run(3, ["-m", "tests.programs.recorder", "kill"], env={records.FOLDER: str(tmp_path)}, timeout=60)
    assert done.returncode != 0
    live = done.stderr
    assert "flight recorder: 3 processes on " in live, live
    assert f"rank 0: in call 71, {MAXIMUM} since " in live
    assert f"rank 1: in call 2, {MAXIMUM} since " in live
    assert ", phase 0, lane 0, segment 0, round 0, step " in live
    assert "ranks 1-2: in none of its calls; has done 70, the last allreduce sum of 100 float32 by " in live
    assert "waited for in the end, by 2: rank 2 (process " in live
    assert live.count("flight recorder:") == 1
    files = [path for path, _ in records.records_in(tmp_path)]
    assert len(files) == 2
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    dead = doctor(tmp_path, "--dump")
    assert "3 processes on " in dead, dead
    assert "3 of them ended" in dead
    assert f"rank 0: in call 71, {MAXIMUM} since " in dead
    assert "the first to be missing: ranks 1-2, in call 71" in dead
    assert "the first to be missing: ranks 0, 2, in call 2" in dead
    assert "call 70: allreduce sum of 100 float32 by " in dead
    assert len(records.clean(tmp_path)) == 2
    assert "no job of yours has records here" in doctor(tmp_path, "--dump")


def test_a_circle_of_communicators_is_named_with_the_error(mpich):
    done = mpich.run(2, ["-m", "tests.programs.recorder", "circle"], timeout=60)
    assert done.returncode != 0
    assert "collectives.errors.CollectiveTimeout: rank 0: allreduce max of 100 float32 by ring (call 71)" in done.stderr
    assert "a circle: rank " in done.stderr, done.stderr
    assert "waits in communicator 1 for rank 1 (process " in done.stderr
    assert "waits in communicator 2 for rank 0 (process " in done.stderr
