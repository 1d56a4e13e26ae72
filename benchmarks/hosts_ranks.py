"""What benchmarks.hosts has every rank do: allreduces of treering, of the MPI library and of Gloo, and a raw stream.

A rank is told by a JSON file what to do; rank 0 writes what was found.
"""

import json
import os
import random
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI

import collectives
from collectives.errors import UnsupportedError
from collectives.selection import parse_overrides
from tuner.contenders import Gloo

Call = Callable[[], object]
LEAD_NS = 3_000_000  # from the broadcast of an instant until all ranks begin
DEADLINE = 60.0  # seconds of one call of ours
LOOKS, LEAST, MOST = 2, 5, 400  # repetitions: before any is kept, and kept


class Stream:
    """What a wire gives to whoever asks no more of it than bytes: each host sends to the next, all at once.

    In an allreduce every host must send, and receive, 2 (m-1)/m of the message; so does this. Collective.
    """

    def __init__(self, comm: collectives.Communicator):
        self.hosts, me = len(comm.topology.nodes), comm.topology.node_of(comm.rank)
        self.leads = comm.rank == comm.topology.nodes[me][0] and self.hosts > 1
        listener = socket.create_server((socket.gethostbyname(socket.gethostname()), 0)) if self.leads else None
        there = MPI.COMM_WORLD.allgather(listener.getsockname() if listener else None)
        if listener:
            following = comm.topology.nodes[(me + 1) % self.hosts][0]
            self.to = socket.create_connection(there[following])
            self.come = listener.accept()[0]
            listener.close()
            for end in (self.to, self.come):
                end.setblocking(False)

    def __call__(self, message: memoryview, landing: memoryview) -> None:
        """As many bytes as an allreduce of the message needs, out of it and into another place."""
        if not self.leads:
            return
        total = 2 * (self.hosts - 1) * len(message) // self.hosts
        sent = received = 0
        while sent < total or received < total:
            readable, writable, _ = select.select([self.come] * (received < total), [self.to] * (sent < total), [])
            if writable:
                place = sent % len(message)
                sent += self.to.send(message[place : place + total - sent])
            if readable:
                place = received % len(message)
                received += self.come.recv_into(landing[place : place + total - received])


class Rank:
    """A rank's part in a launch."""

    def __init__(self, told: Mapping[str, Any]):
        torch.set_num_threads(1)
        self.told, self.world = told, MPI.COMM_WORLD
        self.comm = collectives.Communicator(timeout=DEADLINE)
        self.stream, self.gloo = Stream(self.comm), Gloo(self.world)
        self.instant = torch.zeros(1, dtype=torch.int64)

    def work(self) -> dict[str, Any]:
        cases = [self.case(nbytes) for nbytes in self.told["sizes"]]
        self.gloo.close()
        nodes = self.comm.topology.nodes
        self.comm.close()
        return {"cases": cases, "nodes": nodes, "mpi": self.comm.topology.mpi}

    def calls(self, x: torch.Tensor) -> dict[str, Call]:
        made: dict[str, Call] = {}
        for name in self.told["contenders"]:
            settings: dict[str, Any] = {}
            if name != "treering":
                algorithm, params = parse_overrides(f"allreduce={name}")["allreduce"]
                settings = {"algorithm": algorithm, **params}
            try:
                made[name] = self.comm.plan("allreduce", x, **settings)
            except UnsupportedError:  # on all ranks alike
                continue
        raw: Any = MPI.memory.fromaddress(x.data_ptr(), x.nbytes)
        made["library"] = partial(self.world.Allreduce, MPI.IN_PLACE, [raw, MPI.FLOAT], MPI.SUM)
        made["gloo"] = partial(self.gloo.dist.all_reduce, x)
        made["wire"] = partial(self.stream, memoryview(raw), memoryview(bytearray(x.nbytes)))
        return made

    def case(self, nbytes: int) -> dict[str, Any]:
        """Microseconds of every contender, the largest over ranks, by repetition; an error where one is wrong."""
        x = torch.empty(nbytes // 4)
        calls, expected = self.calls(x), sum(range(self.comm.size + 1))
        for name, call in calls.items():
            self.timed(x, call)
            if name != "wire" and not bool((x == expected).all()):
                raise ArithmeticError(f"{name} is wrong at {nbytes} bytes")
        begin = time.monotonic()
        self.repeat(x, calls, LOOKS)
        fit = int(self.told["seconds"] / (time.monotonic() - begin) * LOOKS)
        times = self.repeat(x, calls, self.world.bcast(max(LEAST, min(MOST, fit))))
        chosen = {name: str(call.choice.algorithm) for name, call in calls.items() if name == "treering"}  # type: ignore[attr-defined]
        return {"bytes": nbytes, "times": times, "choice": chosen.get("treering", "")}

    def repeat(self, x: torch.Tensor, calls: Mapping[str, Call], number: int) -> dict[str, list[float]]:
        order, mine = random.Random(x.numel()), {name: list[float]() for name in calls}
        for _ in range(number):
            for name in order.sample(list(calls), len(calls)):
                mine[name].append(self.timed(x, calls[name]))
        return {name: [max(each) for each in zip(*self.world.allgather(us), strict=True)] for name, us in mine.items()}

    def timed(self, x: torch.Tensor, call: Call) -> float:
        """Microseconds of a call on an input that was freshly written, begun by all ranks at one instant."""
        x.fill_(self.comm.rank + 1)
        self.comm.barrier()
        self.instant[0] = time.perf_counter_ns() + LEAD_NS  # hosts of a bed share the machine's clock
        at = int(self.comm.broadcast(self.instant)[0])
        time.sleep(max(0, at - time.perf_counter_ns() - 500_000) / 1e9)
        while time.perf_counter_ns() < at:
            os.sched_yield()
        call()
        return (time.perf_counter_ns() - at) / 1e3


def main(path: Path) -> None:
    told = json.loads(path.read_text(encoding="utf-8"))
    found = Rank(told).work()
    if MPI.COMM_WORLD.rank == 0:
        Path(told["into"]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
