"""Symmetric memory on real ranks."""

import json

import pytest

CASES = 150
FULL = pytest.mark.full


@pytest.mark.parametrize("mpi, n", [("mpich", 3), ("openmpi", 2), ("impi", 2)], indirect=["mpi"], ids=str)
def test_symmetric_memory(mpi, n):
    done = mpi(n, "symmetric", timeout=240)
    assert done.stdout.count("symmetric memory is right") == n


@pytest.mark.parametrize(
    "variable",
    [
        "TREERING_LINKS=mpi",
        *(pytest.param(x, marks=FULL) for x in ("TREERING_KERNELS=off", "TREERING_RANKS_PER_NODE=1")),
    ],
)
def test_without_kernels_it_is_memory_like_any_other(mpich, variable):
    name, value = variable.split("=")
    done = mpich(2, "symmetric", timeout=240, env={name: value})
    assert done.stdout.count("symmetric memory is right") == 2


@pytest.mark.full
@pytest.mark.parametrize("mpi, n", [("mpich", 4), ("openmpi", 3), ("impi", 2)], indirect=["mpi"], ids=str)
def test_every_collective_in_every_kind_of_memory(mpi, n):
    done = mpi(n, "symmetric_calls", f"{mpi.name} {n}", CASES, timeout=240)
    assert json.loads(done.stdout)["wrong"] == []


@pytest.mark.full
@pytest.mark.parametrize("mpi, n, on_each", [("mpich", 4, 3), ("openmpi", 4, 2)], indirect=["mpi"], ids=str)
def test_within_nodes_of_several(mpi, n, on_each):
    done = mpi(n, "symmetric_nodes", f"{mpi.name} {n}", 80, timeout=240, env={"TREERING_RANKS_PER_NODE": str(on_each)})
    assert json.loads(done.stdout)["wrong"] == []


@pytest.mark.parametrize("mpi, n", [("mpich", 2), ("openmpi", 3)], indirect=["mpi"], ids=str)
def test_what_goes_wrong_is_one_error_on_all_ranks(mpi, n):
    done = mpi(n, "symmetric_trouble", 600, timeout=240)
    assert done.stdout.count("right or refused") == n


@pytest.mark.full
def test_without_torch(mpich):
    done = mpich(2, "symmetric_plain", timeout=240)
    assert done.stdout.count("arrays without torch are right") == 2
