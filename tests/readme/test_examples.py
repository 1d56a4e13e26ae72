"""Every example runs as its first lines say."""

from __future__ import annotations

import re

import pytest

from tests.launch import ROOT, torchrun

PROGRAMS = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if not path.stem.startswith("digits"))
UNDER_TORCHRUN = "ddp_torchrun"
SAYS = {
    "allreduce_standalone": r"(2 ranks, 1x2, sum 3|3 ranks, 1x3, sum 6); .*\n4 MB would go by \w+",
    "custom_algorithm": r"chain: proved for (2 ranks in 2 rounds; gave 3|3 ranks in 4 rounds; gave 6)",
    "ddp_one_line": r"loss on rank 0: [\d.]+ at first, 0\.\d+ in the end\nbucket 0: \d+ bytes by \w+, 100 times",
    UNDER_TORCHRUN: r"2 ranks, no MPI: loss 0\.0\d+",
    "plan_and_nonblocking": r"the plan runs \w+; meanwhile",
}


def test_all_are_here():
    assert sorted(SAYS) == PROGRAMS


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != UNDER_TORCHRUN])
def test_example_runs(name, mpi):
    done = mpi.run(3 if mpi.name == "mpich" else 2, [f"examples/{name}.py"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(SAYS[name], done.stdout), done.stdout


def test_example_runs_under_torchrun():
    done = torchrun(2, [f"examples/{UNDER_TORCHRUN}.py"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(SAYS[UNDER_TORCHRUN], done.stdout), done.stdout
