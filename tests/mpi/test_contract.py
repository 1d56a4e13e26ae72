"""Every collective and algorithm on real ranks, under each MPI library and over each kind of link."""

import json

import pytest

pytestmark = pytest.mark.mpi
CASES, CALLS = 80, 150
LINKS = {
    "shared": {},
    "schedules": {"TREERING_KERNELS": "off"},  # shared memory without node kernels
    "mpi": {"TREERING_LINKS": "mpi"},
    "twos": {"TREERING_RANKS_PER_NODE": "2"},  # nodes of two ranks
    "threes": {"TREERING_RANKS_PER_NODE": "3"},
}
LAUNCHES = {
    "mpich": "1 shared, 2 shared, 2 mpi, 3 schedules, 4 threes, 5 threes",
    "openmpi": "2 schedules, 3 mpi, 4 twos",
    "impi": "2 mpi, 3 twos, 4 shared",
    "store": "4 shared",  # no library at all
}
FULL = "mpich 1 shared", "mpich 4 threes", "mpich 5 threes", "store 4 shared"
SHAPES = {"3 twos": "2+1", "4 twos": "2x2", "4 threes": "3+1", "5 threes": "3+2"}


@pytest.mark.parametrize(
    "mpi, what",
    [
        pytest.param(library, what, marks=[pytest.mark.full] * (f"{library} {what}" in FULL))
        for library, them in LAUNCHES.items()
        for what in them.split(", ")
    ],
    indirect=["mpi"],
    ids=lambda x: str(x).replace(" ", "-"),
)
def test_the_contract(mpi, what):
    """One launch for all that can be asked of so many ranks over these links."""
    ranks, links = what.split()
    done = mpi(int(ranks), "contract", f"{mpi.name} {what}", CASES, CALLS, timeout=200, env=LINKS[links])
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["checks"] > CASES
    assert found["shape"] == SHAPES.get(what, f"1x{ranks}")
    wanted = {"mpi": ["mpi"], "twos": ["shared-memory", "mpi"], "threes": ["shared-memory", "mpi"]}
    assert found["links"] == ([] if ranks == "1" else wanted.get(links, ["shared-memory"]))


def test_more_levels_than_nodes(mpich):
    done = mpich(6, "levels", "seed", timeout=200, env={"TREERING_RANKS_PER_NODE": "2"})
    assert done.stdout.splitlines() == ["(2x2)+(1x2) is right, 3 refused", "3x2 is right, 5 refused"]


@pytest.mark.full
@pytest.mark.parametrize("algorithm, links", [("two_shot", "shared"), ("ring", "mpi")])
def test_a_message_of_more_bytes_than_an_int_counts(mpich, algorithm, links):
    assert json.loads(mpich(2, "engine_large", algorithm, timeout=200, env=LINKS[links]).stdout)["wrong"] == []


@pytest.mark.full
@pytest.mark.parametrize("mpi", ["mpich", "store"], indirect=True)
def test_calls_of_every_kind_back_to_back_with_stragglers(mpi):
    assert json.loads(mpi(3, "soak", 3000, timeout=200).stdout)["wrong"] == []


@pytest.mark.full
def test_many_more_ranks_than_cores(mpich):
    assert json.loads(mpich(9, "crowd", timeout=200).stdout)["wrong"] == []
