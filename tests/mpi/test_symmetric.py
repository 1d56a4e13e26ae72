"""Symmetric memory on real ranks."""

import pytest


@pytest.mark.parametrize("n", [2, 3])
def test_symmetric_memory(mpi, n):
    done = mpi(n, "symmetric", timeout=240)
    assert done.stdout.count("symmetric memory is right") == n


@pytest.mark.parametrize("variable", ["TREERING_LINKS=mpi", "TREERING_KERNELS=off", "TREERING_RANKS_PER_NODE=1"])
def test_without_kernels_it_is_memory_like_any_other(mpich, variable):
    name, value = variable.split("=")
    done = mpich(2, "symmetric", timeout=240, env={name: value})
    assert done.stdout.count("symmetric memory is right") == 2
