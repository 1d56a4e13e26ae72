"""One rank's file descriptor for all ranks of its node, over a socket without a name in any file system.

The socket's address and a secret go by way of the peers. Who connects must be of the same user and know the secret.
"""

import errno
import os
import secrets
import socket
import struct
from contextlib import ExitStack
from hmac import compare_digest

from collectives.ranks.peers import Peers

SECRET_BYTES = 32
INT, CREDENTIALS = struct.Struct("i"), struct.Struct("iII")  # process, user, group
SECONDS = 30.0  # for what is under way already, on the busiest machine


def hand_out(node: Peers, fd: int) -> int:
    """Rank 0's descriptor, on every rank; closed on exec. Collective; UnsupportedError where a rank cannot have it."""
    if node.size == 1:
        return fd
    name, secret = b"\0treering-" + secrets.token_hex(16).encode(), secrets.token_bytes(SECRET_BYTES)
    with ExitStack() as stack:
        with node.together("open a socket"):
            end = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            end.settimeout(SECONDS)
            if node.rank == 0:
                end.bind(name)
                end.listen(2 * node.size)
        told = node.exchange(secret + name if node.rank == 0 else b"")[0]
        with node.together("reach rank 0's socket"):
            if node.rank > 0:
                end.connect(told[SECRET_BYTES:])
                if not same_user(end):
                    raise PermissionError("it is another user's")
                end.send(told[:SECRET_BYTES])
        with node.together("pass a descriptor on"):
            if node.rank > 0:
                fd = receive(end)
            for _ in range(node.size - 1 if node.rank == 0 else 0):
                serve(end, secret, fd)
    return fd


def serve(listener: socket.socket, secret: bytes, fd: int) -> None:
    """Pass the descriptor to the next that knows the secret; all of them have sent it before."""
    while True:
        other, _ = listener.accept()
        with other:
            other.settimeout(SECONDS)
            if same_user(other) and compare_digest(other.recv(SECRET_BYTES), secret):
                socket.send_fds(other, [b"="], [fd])
                return


def receive(end: socket.socket) -> int:
    said, parts, _, _ = end.recvmsg(1, socket.CMSG_SPACE(INT.size), socket.MSG_CMSG_CLOEXEC)
    if not parts:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) if said else ConnectionError("rank 0 has closed it")
    return int(INT.unpack(parts[0][2][: INT.size])[0])


def same_user(end: socket.socket) -> bool:
    """Whether the process at the other end runs as this one does."""
    _, user, _ = CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return bool(user == os.geteuid())
