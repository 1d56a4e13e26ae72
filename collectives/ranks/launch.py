"""From started processes to a group of ranks. MPI is initialised here, and not before a communicator needs it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from collectives.errors import LaunchError, UnsupportedError
from collectives.ranks.forks import FORK, forked
from collectives.ranks.mpi_peers import MpiPeers
from collectives.ranks.peers import Peers

STORE = "or make it of a store, as Communicator.from_store and treering's DDP hook do for the ranks of one node"

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
    """All ranks, the node's, and an mpi4py communicator for what hosts tell each other, where there is MPI."""

    comm: Peers
    node: Peers
    control: Any

    @cached_property
    def leader(self) -> bool:
        return self.node.rank == 0

    def free(self) -> None:
        if self.control is not None:
            self.control.Free()
        self.node.free()
        self.comm.free()


def form(comm: Peers) -> Group:
    """The group of these ranks, which are its own from here on. Collective."""
    return Group(comm, split_by_node(comm), comm.mpi.Dup() if comm.mpi is not None else None)


def connect(mpi_comm: Any, timeout: float, turn: Callable[[], None] = lambda: None) -> MpiPeers:
    """The ranks of mpi_comm, or of COMM_WORLD. Collective. LaunchError where ranks were not started as one job.

    timeout: seconds that any rank may be late. turn: lets calls under way go on while ranks wait for each other.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        mend = "pip install 'treering[mpich]', or mpi4py built for the cluster's own MPI"
        raise LaunchError(f"mpi4py is not installed: {mend}; {STORE} ({error})") from error
    except RuntimeError as error:
        mend = "install an MPI library (pip install mpich), or load the cluster's module before starting Python"
        why = str(error).partition("\n")[0]
        raise LaunchError(f"mpi4py finds no MPI library: {mend}; {STORE} ({why})") from error
    refuse_unusable(MPI)
    if mpi_comm is None:
        mpi_comm = MPI.COMM_WORLD
        refuse_lone_worlds(mpi_comm.size, MPI.Get_library_version().split(",")[0].split("\n")[0])
    if not isinstance(mpi_comm, MPI.Intracomm):
        raise TypeError(f"mpi_comm is a {type(mpi_comm).__name__}; pass an mpi4py intracommunicator")
    return MpiPeers.duplicate(mpi_comm, timeout, turn)


def refuse_unusable(mpi: Any) -> None:
    """An MPI that others have left so that nobody can call it here."""
    if forked():
        raise LaunchError(f"this process was forked from one that had initialised MPI, and MPI serves that one; {FORK}")
    if not mpi.Is_initialized():
        raise LaunchError("MPI is not initialised, since mpi4py.rc.initialize is off: call MPI.Init_thread() before")
    if mpi.Is_finalized():
        raise LaunchError("MPI has been finalised in this process, and cannot start again: make communicators before")
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED and not mpi.Is_thread_main():
        raise UnsupportedError("MPI was initialised for calls from its main thread only, and this is another one")


def split_by_node(comm: Peers) -> Peers:
    """The ranks that share memory with this one. TREERING_RANKS_PER_NODE=n parts a host into nodes of n ranks each."""
    host = comm.host()
    given = os.environ.get("TREERING_RANKS_PER_NODE")
    if not given:
        return host
    if not given.isdigit() or int(given) < 1:
        raise ValueError(f"TREERING_RANKS_PER_NODE is {given!r}; it is a number of ranks, 1 or more")
    node = host.split(host.rank // int(given), host.rank)
    assert node is not None
    host.free()
    return node


def refuse_lone_worlds(size: int, library: str) -> None:
    """A world of one among processes that were started as several: the launcher belongs to another MPI library."""
    if size > 1:
        return
    for variable, launcher in LAUNCHERS:
        started = os.environ.get(variable, "")
        if started.isdigit() and int(started) > 1:
            mend = "start them with the mpiexec that belongs to this environment's MPI (treering doctor shows which)"
            if launcher == "srun":
                mend = f"let srun speak its protocol (--mpi=pmi2 for MPICH, --mpi=pmix for Open MPI), or {mend}"
            elif launcher == "torchrun":
                mend = (
                    f"start them with mpiexec, or call init_process_group of integrations.torch_launch first; {STORE}"
                )
            raise LaunchError(
                f"{launcher} started {started} processes, but each is a world of one: mpi4py here uses {library}, "
                f"which does not know that launcher; {mend}"
            )
