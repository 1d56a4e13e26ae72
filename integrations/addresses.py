"""Which address of rank 0's host the other ranks reach, asked of the kernels of both ends and of no name service."""

import fcntl
import socket
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

SIOCGIFADDR = 0x8915
LOOPBACK = "127.0.0.1"
WIDTH = 16  # bytes of an IPv4 address as text, padded
PER_HOST = 16  # addresses of a host that are told to the others


def meeting_address(told: Sequence[Sequence[str]]) -> str:
    """The first address with which this kernel would speak to every other host; "" where there is none.

    told: the addresses of each rank's host. Meant for rank 0, of whose host it is the narrowest that all reach.
    """
    mine = list(addresses().values())
    common: list[str] | None = None
    for theirs in told:
        if set(theirs) == set(mine):
            continue  # my own host; or one that cannot be told from it
        # An address that both have (a bridge of containers) leads each host to itself.
        ways = [source_address(address) for address in theirs if address not in mine]
        common = [way for way in (ways if common is None else common) if way in ways and way in mine]
    return common[0] if common else ""


def meeting_address_of(world: "MPI.Intracomm") -> str:
    """The narrowest address of rank 0's host that every rank of `world` reaches; "" where there is none. Collective.

    The loopback where all ranks share a node. Only rank 0's answer counts.
    """
    from mpi4py import MPI

    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    shared = node.size == world.size
    node.Free()
    if shared:
        return LOOPBACK
    mine = list(addresses().values())
    told = b"".join(address.encode().ljust(WIDTH) for address in mine).ljust(WIDTH * PER_HOST)
    everyone = bytearray(len(told) * world.size)
    world.Allgather([told, MPI.BYTE], [everyone, MPI.BYTE])
    starts = range(0, len(everyone), len(told))
    return meeting_address([bytes(everyone[start : start + len(told)]).decode().split() for start in starts])


def addresses() -> dict[str, str]:
    """IPv4 addresses of this host by interface, without the loopback; no more than PER_HOST."""
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an IPv4 address
                continue
            address = socket.inet_ntoa(answer[20:24])
            if not address.startswith("127."):
                found[name] = address
    return dict(list(found.items())[:PER_HOST])


def source_address(target: str) -> str | None:
    """The address with which this host would speak to `target`. Sends nothing: the kernel only looks up the route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def interface_of(address: str | None) -> str | None:
    """The interface that has this address."""
    return next((name for name, held in addresses().items() if held == address), None)
