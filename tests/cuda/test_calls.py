"""Collectives on GPU memory from the communicator down, with everything but the GPU: tests/cuda/emulator.py stands in."""

from __future__ import annotations

import pytest

from tests.cuda import on_cpu

pytestmark = pytest.mark.skipif(on_cpu.compiler() is None, reason="g++ is not installed: apt-get install g++")


@pytest.fixture(scope="module", autouse=True)
def built():
    on_cpu.library()


@pytest.mark.parametrize("ranks", [2, 3])
def test_calls(mpich, ranks):
    mpich(ranks, "cuda_calls")
