"""The public surface on real ranks: every kind of memory, everything that is refused, threads and child processes."""

import json

import pytest

from tests import launch

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(
    "mpi, ranks",
    [("mpich", 2), ("openmpi", 3), pytest.param("mpich", 1, marks=pytest.mark.full)],
    indirect=["mpi"],
    ids=str,
)
def test_the_public_surface(mpi, ranks, tmp_path):
    found = json.loads(mpi(ranks, "api", tmp_path).stdout)
    assert found["wrong"] == []
    assert found["checks"] > 300


def test_children_never_initialise_mpi(mpich):
    found = json.loads(mpich(2, "engine_children").stdout)
    assert found == {"fork": [[0, 3, True]] * 2, "spawn": [[0, 3, True]] * 2}


@pytest.mark.parametrize("launcher, library, family", [
    ("mpich", "openmpi", "an mpiexec of the MPICH family"), ("openmpi", "impi", "Open MPI's mpirun"),
])  # fmt: skip
def test_a_foreign_mpiexec_is_refused_by_every_process(launcher, library, family):
    """N worlds of one: this environment's MPI does not know the launcher."""
    foreign, own = launch.find(launcher), launch.find(library)
    if foreign is None or own is None:
        pytest.skip(f"needs {launcher} and {library}")
    command = foreign.command(2, ["-c", "import collectives; collectives.Communicator()"])
    command[command.index(foreign.python)] = own.python
    done = launch.run_command(command, foreign.environment(), timeout=60)
    assert done.returncode != 0
    assert f"LaunchError: {family} started 2 processes, but each is a world of one: mpi4py here uses" in done.stderr
    assert "start them with the mpiexec that belongs to this environment's MPI" in done.stderr
