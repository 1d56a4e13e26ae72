"""Collectives on GPU memory from the communicator down, with all but the GPU, for which emulator.py stands in."""

from __future__ import annotations

import importlib.util
import json

import pytest

from benchmarks import gpu_check, gpu_ranks
from collectives.cuda.driver import driver
from collectives.errors import UnsupportedError
from tests.cuda import on_cpu
from tests.cuda.emulator import Emulator

pytestmark = pytest.mark.skipif(on_cpu.compiler() is None, reason="g++ is not installed: apt-get install g++")


@pytest.fixture(scope="module", autouse=True)
def built():
    on_cpu.library()


def test_calls(mpich):
    mpich(3, "cuda_calls")


def test_the_check_for_a_gpu_runs(monkeypatch):
    """Of benchmarks/gpu_check.sh, what compares kernels with the CPU's bits: ranks as streams of one process."""
    gpu = Emulator()
    monkeypatch.setattr(gpu_ranks, "driver", lambda: gpu)
    found = gpu_check.correctness(sizes=(2, 3))
    assert found["ok"], found
    assert found["3 ranks"]["calls"] > 50
    assert not gpu.allocations, "memory is left"


def test_what_ranks_pass_by_mistake(mpich):
    """Each mistake of one rank is said on every rank, before anybody's deadline but that of a kernel that waits."""
    done = mpich.run(2, ["-m", "tests.programs.cuda_errors"], timeout=100)
    assert done.returncode != 0  # broken communicators end their job
    seen = json.loads(done.stdout.strip().splitlines()[0])

    def both(case, first, second):
        for rank, (kind, words) in enumerate((first, second)):
            found = seen[case][rank]
            assert found[0] == kind, (case, rank, found)
            assert words in found[1], (case, rank, found)

    mismatch = ("MismatchError", "memory")
    both("a host's array", mismatch, mismatch)
    both("a host's array, later", mismatch, mismatch)
    both("another count", ("MismatchError", "count"), ("MismatchError", "count"))
    both("not contiguous", mismatch, ("ValueError", "is not contiguous"))
    both("another device", mismatch, ("ValueError", "is on GPU 1, and this communicator works on GPU 0"))
    both("managed memory", mismatch, ("UnsupportedError", "managed memory"))
    both(
        "no driver",
        ("UnsupportedError", "rank 1: cannot properties"),
        ("UnsupportedError", "rank 1: cannot properties"),
    )
    both("a dtype that kernels have not", mismatch, ("UnsupportedError", "on a GPU there are float16"))
    both("an unknown parameter", mismatch, ("ValueError", "has no parameter 'lanes'"))
    both("a rank whose kernel never comes", ("CollectiveTimeout", "waiting for rank 1"), ("CollectiveError", "away"))
    assert "rank 1: cannot open" in seen["through the host"][0]
    waited = ("through the host", "a rank whose kernel never comes")
    slow = [case for case, ranks in seen.items() if case not in waited and any(found[2] > 4 for found in ranks)]
    assert not slow, seen


def test_without_cupy_or_a_driver_the_error_says_the_mend():
    """A tensor that says it is on a GPU, on a machine that has none."""
    if importlib.util.find_spec("cupy") is not None:
        pytest.skip("CuPy is installed")
    with pytest.raises(UnsupportedError, match=r"pip install 'treering\[cuda12\]'"):
        driver()
