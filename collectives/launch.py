"""From started processes to a group of ranks: MPI is initialised here, and not before a communicator is made."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from collectives.errors import LaunchError

# How launchers tell a process how many there are, and what to call them.
LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"),
    ("PMI_SIZE", "an mpiexec of the MPICH family"),
    ("MPI_LOCALNRANKS", "an mpiexec of the MPICH family"),
    ("PMIX_SIZE", "a PMIx launcher"),
    ("SLURM_STEP_NUM_TASKS", "srun"),
    ("WORLD_SIZE", "torchrun"),
)


@dataclass
class Group:
    """Our own duplicates of a communicator: of all ranks, of the node's, and one for what hosts tell each other."""

    comm: Any
    node: Any
    control: Any

    @cached_property
    def leader(self) -> bool:
        return bool(self.node.rank == 0)

    def free(self) -> None:
        for comm in (self.control, self.node, self.comm):
            comm.Free()


def connect(mpi_comm: Any = None, meet: Callable[[Any], None] = lambda _: None) -> Group:
    """Duplicates of mpi_comm, or of COMM_WORLD. Collective. LaunchError where ranks were not started as one job.

    meet: called with the communicator before ranks wait for each other in the MPI library.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        mend = "pip install 'treering[mpich]', or mpi4py built for the cluster's own MPI"
        raise LaunchError(f"mpi4py is not installed: {mend} ({error})") from error
    except RuntimeError as error:
        mend = "install an MPI library (pip install mpich), or load the cluster's module before starting Python"
        raise LaunchError(f"mpi4py finds no MPI library: {mend} ({error})") from error
    if mpi_comm is None:
        mpi_comm = MPI.COMM_WORLD
        refuse_lone_worlds(mpi_comm.size, MPI.Get_library_version().split(",")[0].split("\n")[0])
    if not isinstance(mpi_comm, MPI.Intracomm):
        raise TypeError(f"mpi_comm is a {type(mpi_comm).__name__}; pass an mpi4py intracommunicator")
    meet(mpi_comm)
    comm = mpi_comm.Dup()
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    return Group(comm, split_by_node(comm), comm.Dup())


def split_by_node(comm: Any) -> Any:
    """The ranks that share memory with this one. TREERING_RANKS_PER_NODE=n parts a host into nodes of n ranks each."""
    from mpi4py import MPI

    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    given = os.environ.get("TREERING_RANKS_PER_NODE")
    if not given:
        return host
    if not given.isdigit() or int(given) < 1:
        raise ValueError(f"TREERING_RANKS_PER_NODE is {given!r}; it is a number of ranks, 1 or more")
    node = host.Split(host.rank // int(given), host.rank)
    host.Free()
    return node


def refuse_lone_worlds(size: int, library: str) -> None:
    """A world of one among processes that were started as several: the launcher belongs to another MPI library."""
    if size > 1:
        return
    for variable, launcher in LAUNCHERS:
        started = os.environ.get(variable, "")
        if started.isdigit() and int(started) > 1:
            mend = "start them with the mpiexec that belongs to this environment's MPI (treering doctor shows which)"
            if launcher == "torchrun":
                mend = "start them with mpiexec, or treering's commands with -n"
            raise LaunchError(
                f"{launcher} started {started} processes, but each is a world of one: mpi4py here uses {library}, "
                f"which does not know that launcher; {mend}"
            )
