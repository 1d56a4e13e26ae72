"""The process that tells ranks of MPICH and Intel MPI who they are, where no MPI launcher does: a server of PMI 1.

Run by rank 0 as a program of its own (pmi.py), which imports nothing but the standard library: ranks cannot serve one
another while MPI initialises itself. It takes a listening socket by its descriptor, and from standard input one line
of JSON, `Job`. Who connects must first say the job's secret and a rank that nobody has taken; from then on the
connection speaks MPICH's wire protocol, a line a message (MPICH's src/pmi, "PMI-1").

It goes into the background, and ends when all ranks have left. A rank that is gone without a word takes the others'
connections with it, so that none waits for it in MPI's initialisation, where Python cannot be interrupted.
"""

import json
import os
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from hmac import compare_digest

SPACE = "treering"  # the name of the only key space
LONGEST = 1 << 16  # bytes of a line
ACCEPTED = b"welcome\n"
LIMITS = {"kvsname_max": 256, "keylen_max": 64, "vallen_max": 1024}
MAPPING = "PMI_process_mapping"


@dataclass(frozen=True)
class Job:
    """size: number of ranks. mapping: which of them share a node, as MPICH writes it. seconds: for all to come."""

    size: int
    mapping: str
    secret: str
    seconds: float


@dataclass(eq=False)
class Client:
    """One connection. rank: None until it has said the secret. left: whether it has said good-bye."""

    connection: socket.socket
    rank: int | None = None
    left: bool = False
    unread: bytes = b""


@dataclass
class Server:
    """Serves one job. `values`: what ranks have put, for all of them."""

    job: Job
    listener: socket.socket
    values: dict[str, str] = field(default_factory=dict)
    clients: dict[int, Client] = field(default_factory=dict)  # by rank
    waiting: set[int] = field(default_factory=set)  # in the barrier

    def __post_init__(self) -> None:
        self.values[MAPPING] = self.job.mapping
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Until all ranks have left, one is lost, or not all have come in time."""
        until = time.monotonic() + self.job.seconds
        while not self._over():
            missing = len(self.clients) < self.job.size
            for key, _ in self._selector.select(max(0.0, until - time.monotonic()) if missing else None):
                if key.data is None:
                    self._accept()
                else:
                    self._read(key.data)
            if missing and time.monotonic() > until:
                return

    def _over(self) -> bool:
        gone = [client for client in self.clients.values() if client.connection.fileno() < 0]
        return any(not client.left for client in gone) or len(gone) == self.job.size

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, Client(connection))

    def _read(self, client: Client) -> None:
        try:
            came = client.connection.recv(LONGEST)
        except OSError:
            came = b""
        client.unread += came
        *lines, client.unread = client.unread.split(b"\n")
        for line in lines:
            if client.rank is None:
                self._admit(client, line)
            elif client.connection.fileno() >= 0:
                self._answer(client, line.decode("ascii", "replace").strip())
        if not came or len(client.unread) > LONGEST:
            self._close(client)

    def _admit(self, client: Client, line: bytes) -> None:
        """Who does not say the secret, and a rank that is free, has lost its connection."""
        secret, _, rank = line.partition(b" ")
        known = compare_digest(secret, self.job.secret.encode())
        if not known or not rank.isdigit() or int(rank) >= self.job.size or int(rank) in self.clients:
            self._close(client)
            return
        client.rank = int(rank)
        self.clients[client.rank] = client
        self._send(client, ACCEPTED)

    def _close(self, client: Client) -> None:
        if client.connection.fileno() >= 0:
            self._selector.unregister(client.connection)
            client.connection.close()

    def _send(self, client: Client, line: bytes) -> None:
        client.connection.setblocking(True)  # lines are short, and who asks reads the answer
        try:
            client.connection.sendall(line)
            client.connection.setblocking(False)
        except OSError:
            self._close(client)

    # ------------------------------------------------------------ the protocol
    def _answer(self, client: Client, line: str) -> None:
        said = dict(part.split("=", 1) for part in line.split(" ") if "=" in part)
        command = said.get("cmd", "")
        if command == "barrier_in":
            self._wait(client)
        elif command == "finalize":
            client.left = True
            self._send(client, b"cmd=finalize_ack rc=0\n")
        elif command == "abort":
            self._close(client)
        else:
            answer = self._answers(command, said, line)
            self._send(client, f"cmd={answer}\n".encode())

    def _answers(self, command: str, said: dict[str, str], line: str) -> str:
        if command == "put":
            self.values[said.get("key", "")] = line.partition("value=")[2]
            return "put_result rc=0 msg=success"
        if command == "get":
            value = self.values.get(said.get("key", ""))
            found = "rc=-1 msg=key_not_found value=unknown" if value is None else f"rc=0 msg=success value={value}"
            return f"get_result {found}"
        facts = {
            "init": "response_to_init rc=0 pmi_version=1 pmi_subversion=1",
            "get_maxes": "maxes rc=0 " + " ".join(f"{name}={value}" for name, value in LIMITS.items()),
            "get_appnum": "appnum rc=0 appnum=0",
            "get_universe_size": f"universe_size rc=0 size={self.job.size}",
            "get_my_kvsname": f"my_kvsname rc=0 kvsname={SPACE}",
        }
        return facts.get(command, f"{command}_result rc=-1 msg=not_supported")

    def _wait(self, client: Client) -> None:
        assert client.rank is not None
        self.waiting.add(client.rank)
        if len(self.waiting) == self.job.size:
            self.waiting.clear()
            for each in self.clients.values():
                self._send(each, b"cmd=barrier_out rc=0\n")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the ranks
    told = Job(**json.loads(sys.stdin.readline()))
    if os.fork():
        os._exit(0)  # and rank 0 goes on
    with socket.socket(fileno=int(sys.argv[1])) as socket_of_rank_0:
        Server(told, socket_of_rank_0).run()
