"""Every example runs as its first lines say."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.launch import ROOT, torchrun

PROGRAMS = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if not path.stem.startswith("digits"))
UNDER_TORCHRUN = ("ddp_torchrun", "torch_backend")
NEEDS_MORE = "lightning_ddp"  # Lightning, which an older environment lacks
WITHOUT = "import runpy, sys; sys.modules['lightning'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
SAYS = {
    "allreduce_standalone": r"2 ranks, 1x2, sum 3; .*\n4 MB would go by \w+",
    "custom_algorithm": r"relay: proved for 2 ranks in 2 rounds; gave 3",
    "ddp_one_line": r"loss on rank 0: [\d.]+ at first, 0\.\d+ in the end\nbucket 0: \d+ bytes by \w+, 100 times",
    "gradients_in_symmetric_memory": r"step 0: loss \d{2,}\.\d\nstep 19: loss \d\.\d\n2162692 bytes .* one_pass",
    "ddp_torchrun": r"2 ranks, no MPI: loss 0\.0\d+",
    "fsdp2": r"rank 0 holds \d+ of 1409 parameters: loss 0\.0\d+",
    "plan_and_nonblocking": r"the plan runs \w+; meanwhile",
    "torch_backend": r"2 ranks over treering: worst loss 0\.0\d+",
}


def test_all_are_here():
    assert sorted([*SAYS, NEEDS_MORE]) == PROGRAMS


@pytest.mark.parametrize("name", [name for name in SAYS if name not in UNDER_TORCHRUN[:1]])
def test_example_runs(name, mpi):
    done = mpi.run(2, [f"examples/{name}.py"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(SAYS[name], done.stdout), done.stdout


@pytest.mark.mpi
@pytest.mark.full
@pytest.mark.parametrize("name", UNDER_TORCHRUN)
def test_example_runs_under_torchrun(name):
    done = torchrun(2, [f"examples/{name}.py"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(SAYS[name], done.stdout), done.stdout


@pytest.mark.mpi
@pytest.mark.full
@pytest.mark.skipif(find_spec("lightning") is None, reason="Lightning is not installed: pip install lightning")
def test_lightning_trains_over_the_hook():
    done = torchrun(2, [f"examples/{NEEDS_MORE}.py"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"2 ranks: loss 0\.0\d+, 80 buckets averaged", done.stdout), done.stdout


def test_an_example_says_what_it_lacks():
    program = ROOT / "examples" / f"{NEEDS_MORE}.py"
    done = subprocess.run([sys.executable, "-c", WITHOUT, program], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "pip install lightning" in done.stderr
