"""PyTorch process groups under any launcher (nothing to export, no port to choose), and communicators of their ranks.

    from integrations.torch_launch import communicator, init_process_group
    init_process_group()          # under mpirun, mpiexec, srun, or torchrun
    comm = communicator()         # of the same ranks; without MPI where they do not need it

Under an MPI launcher rank 0 opens a store on a free port of the narrowest address that all ranks reach (the loopback
where they share a node) and broadcasts it over MPI, with a secret that all keys begin with. Under torchrun PyTorch's
own environment variables are used; ranks of one node then need no MPI, and those of several get a world of MPICH's or
Intel MPI's (pmi.py).
The group is destroyed at exit, before MPI is finalised, since the other order crashes; and after communicators have
looked whether this process leaves in peace, since destroying a group of treering's waits for the other ranks.
"""

import atexit
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from collectives import Communicator
from collectives.errors import LaunchError
from collectives.ranks.launch import LAUNCHERS, refuse_lone_worlds
from collectives.topology import mpi_library

from .addresses import interface_of, meeting_address_of, source_address
from .pmi import give_world

if TYPE_CHECKING:
    from mpi4py import MPI  # importing it initialises MPI, which a DataLoader's worker that imports this must not do

__all__ = ["communicator", "init_process_group"]

c10d: Any = dist  # half of what is used has no annotations
TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def init_process_group(
    backend: str = "gloo",
    timeout: timedelta | float = 1800.0,
    comm: "MPI.Intracomm | None" = None,
    mpi: bool | None = None,
) -> None:
    """Make PyTorch's default process group of the ranks of `comm` (all ranks, if not given), in MPI's order.

    `timeout` (seconds or a timedelta) is the store's and the group's. MASTER_ADDR and MASTER_PORT, where they are set,
    say where the store listens. `mpi`: whether ranks that torchrun has started get MPI too, of which they are then the
    world, in torchrun's order; if not given, where they are on several nodes. Such ranks import mpi4py.MPI afterwards.

    LaunchError says what is wrong with the launch and the mend; RuntimeError if there is a default group already.
    """
    if dist.is_initialized():
        raise RuntimeError("PyTorch's default process group exists already: call init_process_group once, first")
    if "treering" in backend:
        import integrations.torch_backend  # noqa: F401 - it registers itself
    limit = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    if comm is None and by_environment(os.environ):
        shared, rank, size = next(c10d.rendezvous("env://", timeout=limit))
        store = c10d.PrefixStore("default", shared)
        if on_several_nodes(os.environ) if mpi is None else mpi:
            give_world(c10d.PrefixStore("mpi", shared), rank, size, limit.total_seconds())
    else:
        from mpi4py import MPI

        refuse_lone_worlds(MPI.COMM_WORLD.size, mpi_library())
        world = MPI.COMM_WORLD if comm is None else comm
        store, rank, size = _store(world, limit), world.rank, world.size
    atexit.register(_leave, os.getpid())  # after MPI, and before a communicator: this one runs between the two
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)


def communicator(**settings: Any) -> Communicator:
    """A communicator of the ranks of PyTorch's default process group. Collective.

    Over MPI where they have it, else by way of the group's own store, which serves ranks of one node: UnsupportedError
    says so on several. settings: table, timeout and algorithm, as Communicator takes them.
    """
    if over_mpi():
        return Communicator(**settings)
    store = dist.distributed_c10d._get_default_store()
    return Communicator.from_store(store, dist.get_rank(), dist.get_world_size(), **settings)


def communicator_of(store: Any, rank: int, size: int, **settings: Any) -> Communicator:
    """The same of the ranks that meet in a store of PyTorch's, some or all. LaunchError where one does not come."""
    if not over_mpi():
        return Communicator.from_store(store, rank, size, **settings)
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    refuse_lone_worlds(world.size, mpi_library())
    store.set(f"mpi/{rank}", str(world.rank))
    try:
        places = [int(store.get(f"mpi/{each}")) for each in range(size)]
    except RuntimeError as error:  # as torch's stores raise them all
        raise LaunchError(f"rank {rank} has not heard of all {size} ranks of its process group: {error}") from error
    group = world.Get_group()
    chosen = group.Incl(places)
    made = world.Create_group(chosen)
    try:
        return Communicator(made, **settings)
    finally:
        for each in (made, chosen, group):
            each.Free()


def over_mpi() -> bool:
    """Whether ranks have a world of MPI's: a launcher's of MPI, or one that `init_process_group` has given them."""
    if by_mpi(os.environ):
        return True
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return False
    return bool(mpi.COMM_WORLD.size > 1)


def by_mpi(environment: Mapping[str, str]) -> bool:
    """Whether an MPI launcher started this process, or srun; not torchrun, which these may have started once a host."""
    started = (environment.get(name, "") for name, launcher in LAUNCHERS if launcher != "torchrun")
    several = any(number.isdecimal() and int(number) > 1 for number in started)
    return several and "TORCHELASTIC_RUN_ID" not in environment


def by_environment(environment: Mapping[str, str]) -> bool:
    """Whether PyTorch's own variables, not MPI, say who is who: torchrun's, or a scheduler's without MPI's launcher."""
    return "TORCHELASTIC_RUN_ID" in environment or (
        all(name in environment for name in TORCHRUN) and not by_mpi(environment)
    )


def on_several_nodes(environment: Mapping[str, str]) -> bool:
    """Whether torchrun was started more than once, once a host, for these ranks."""
    return environment.get("LOCAL_WORLD_SIZE", environment["WORLD_SIZE"]) != environment["WORLD_SIZE"]


def _leave(pid: int) -> None:
    if os.getpid() == pid and dist.is_initialized():  # not in a child that was forked
        dist.destroy_process_group()


def _store(world: "MPI.Intracomm", timeout: timedelta) -> Any:
    """A store that rank 0 serves and all ranks of `world` have joined. Collective."""
    host = meeting_address_of(world)
    listener: socket.socket | None = None
    if world.rank == 0:
        try:
            listener = _listen(os.environ.get("MASTER_ADDR", host), int(os.environ.get("MASTER_PORT", "0")))
            said = "{} {} {}".format(*listener.getsockname()[:2], secrets.token_hex(16))
        except (OSError, ValueError) as error:
            said = f"rank 0 could not listen on {os.environ.get('MASTER_ADDR', host) or 'any common address'}: {error}"
    else:
        said = ""
    said = _broadcast(world, said)
    if said.startswith("rank 0 "):
        raise LaunchError(f"{said}; set MASTER_ADDR to an address of rank 0's host that all ranks reach")
    host, port, secret = said.split()
    if host != "127.0.0.1" and "GLOO_SOCKET_IFNAME" not in os.environ:
        # Gloo looks its own host's name up, and many name themselves 127.0.1.1.
        name = interface_of(source_address(host))
        if name is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = name
    store = c10d.TCPStore(
        host,
        int(port),
        world.size,
        is_master=listener is not None,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )
    # Keys that nobody else of the network can guess, or take by mistake.
    return c10d.PrefixStore(secret, store)


def _listen(host: str, port: int) -> socket.socket:
    if not host:
        raise OSError("the hosts of this job share no network that rank 0 can see")
    return socket.create_server((socket.gethostbyname(host), port), backlog=4096)


def _broadcast(world: "MPI.Intracomm", text: str) -> str:
    """Rank 0's text on all ranks, as bytes (nothing is unpickled)."""
    from mpi4py import MPI

    payload = bytearray(text.encode())
    length = bytearray(len(payload).to_bytes(8, "little"))
    world.Bcast([length, MPI.BYTE], root=0)
    if world.rank != 0:
        payload = bytearray(int.from_bytes(length, "little"))
    world.Bcast([payload, MPI.BYTE], root=0)
    return payload.decode()
