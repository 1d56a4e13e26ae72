"""Ranks on one GPU, for gpu_check: several as streams of one process, or two processes that meet in a file.

python -m benchmarks.gpu_ranks PART STORE RANK: PART is ipc, staged or hook; rank 0 prints what it found as JSON.
"""

import ctypes
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from collectives.cuda import layout as at
from collectives.cuda.driver import driver
from collectives.cuda.window import Shape

PATIENCE_NS = 10 * 10**9
MIB = 1 << 20


class VirtualRanks:
    """Windows and memory of several ranks in one process, each with a stream of its own; a World of tests' cases."""

    def __init__(self, size: int, shape: Shape, room: int = 1 << 16):
        self.driver, self.size, self.shape = driver(), size, shape
        d = self.driver
        self.held = [d.allocate(shape.window_bytes(size)) for _ in range(size)]
        windows = list(self.held)
        self.inputs, self.outputs, self.data = ([d.allocate(room) for _ in range(size)] for _ in range(3))
        regions = d.allocate(8 * at.MAX_RANKS)
        self.held += [*self.inputs, *self.outputs, *self.data, regions]
        self.reports = [d.pin(4 * at.REPORT_WORDS) for _ in range(size)]
        self.streams = [d.stream() for _ in range(size)]
        self.write(regions, bytes((ctypes.c_uint64 * size)(*self.data)))
        self.groups = [
            shape.group(rank, windows, PATIENCE_NS, self.reports[rank], regions) for rank in range(size)
        ]  # fmt: skip

    def write(self, address: int, content: bytes) -> None:
        held = ctypes.create_string_buffer(content, len(content) or 1)
        self.driver.copy(address, ctypes.addressof(held), len(content), self.streams[0])
        self.driver.synchronize(self.streams[0])

    def read(self, address: int, n_bytes: int) -> bytes:
        held = ctypes.create_string_buffer(n_bytes or 1)
        self.driver.copy(ctypes.addressof(held), address, n_bytes, self.streams[0])
        self.driver.synchronize(self.streams[0])
        return held.raw[:n_bytes]

    def launch(self, kernel: str, dtype: str, op: str, grid: int, threads: int, arguments: Sequence[Any]) -> None:
        """One kernel for each rank; loaded before the first of them waits."""
        function = self.driver.function(kernel, dtype, op)
        for rank, stream in enumerate(self.streams):
            self.driver.launch(function, grid, threads, (self.groups[rank], arguments[rank]), stream)

    def run(self, kernel: str, dtype: str, op: str, grid: int, threads: int, arguments: Sequence[Any]) -> None:
        """To the end. RuntimeError where a rank gave up."""
        self.launch(kernel, dtype, op, grid, threads, arguments)
        for stream in self.streams:
            self.driver.synchronize(stream)
        for rank, report in enumerate(self.reports):
            words = list((ctypes.c_uint32 * at.REPORT_WORDS).from_address(report))
            if words[at.R_CODE]:
                raise RuntimeError(f"rank {rank} gave up in {kernel}: {words}")

    def close(self) -> None:
        for address in self.held:
            self.driver.free(address)
        for report in self.reports:
            self.driver.unpin(report)


def ipc(comm: Any, torch: Any) -> dict[str, Any]:
    """Collectives of two processes over each other's memory. On one GPU without MPS they take turns: no times."""
    wrong = 0
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for count in (1, 1003, 1 << 20):
            for algorithm in ("one_shot", "two_shot", "ring"):
                x = torch.arange(count, device="cuda").remainder(7).add(comm.rank).to(dtype)
                wanted = sum(torch.arange(count).remainder(7).add(rank) for rank in range(comm.size)).to(dtype)
                comm.allreduce(x, algorithm=algorithm)
                wrong += not torch.equal(x.cpu(), wanted)
    x = comm.empty(4096, "float32", device="cuda")
    x.fill_(comm.rank + 1)
    comm.allreduce(x, algorithm="two_shot")
    wrong += bool((x != sum(range(1, comm.size + 1))).any())
    work = comm.allreduce(torch.ones(999, device="cuda"), blocking=False)
    wrong += bool((work.wait() != comm.size).any())
    return {"ok": not wrong, "wrong": wrong}


def staged(comm: Any, torch: Any) -> dict[str, Any]:
    """Allreduce through the host, against the least of its three parts."""
    rows, wrong = [], 0
    for mib in (16, 64, 256):
        count = mib * MIB // 4
        x = torch.ones(count, device="cuda")
        host = comm.empty(count, "float32")
        pinned = torch.empty(count).pin_memory()

        def rate(run: Any, n_bytes: int = 4 * count) -> float:
            times = []
            for _ in range(5):
                comm.barrier()
                torch.cuda.synchronize()
                began = time.perf_counter()
                run()
                torch.cuda.synchronize()
                times.append(time.perf_counter() - began)
            return n_bytes / sorted(times)[2] / 1e9

        found = {
            "down_GBps": rate(lambda: pinned.copy_(x, non_blocking=True)),  # noqa: B023
            "up_GBps": rate(lambda: x.copy_(pinned, non_blocking=True)),  # noqa: B023
            "host_GBps": rate(lambda: comm.allreduce(host, op="max")),  # noqa: B023
        }
        x.fill_(1)
        best = 0.0
        for piece in (1, 4, 16):
            how = {"algorithm": "staged", "piece_bytes": piece * MIB}
            best = max(best, rate(lambda: comm.allreduce(x, op="max", **how)))  # noqa: B023
        wrong += bool((x != 1).any())
        rows.append({"MiB": mib, **found, "staged_GBps": best, "share": best / min(found.values())})
    return {"ok": not wrong and all(row["share"] >= 0.8 for row in rows[1:]), "rows": rows}


def hook(comm: Any, torch: Any) -> dict[str, Any]:
    """Ten steps of DDP with the hook on a GPU against ten of the mean taken by hand."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from integrations.torch_ddp import register

    def model() -> Any:
        torch.manual_seed(1)
        layers = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
        return layers.cuda()

    def batch(step: int, rank: int) -> Any:
        made = torch.Generator().manual_seed(100 * step + rank)
        return torch.randn(32, 256, generator=made).cuda()

    store = dist.FileStore(sys.argv[2] + "-gloo")  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)
    ours, plain = DistributedDataParallel(model(), device_ids=[0]), model()
    state = register(ours, comm=comm)
    for step in range(10):
        for module, ranks in ((ours, [comm.rank]), (plain, range(comm.size))):
            optimizer = torch.optim.SGD(module.parameters(), 0.05)
            optimizer.zero_grad()
            for rank in ranks:
                (module(batch(step, rank)).square().mean() / (1 if module is ours else comm.size)).backward()
            optimizer.step()
    far = max(float((a - b).abs().max()) for a, b in zip(ours.module.parameters(), plain.parameters(), strict=True))
    state.close()
    dist.destroy_process_group()
    return {"ok": far < 1e-5, "largest_difference": far}


def main() -> None:
    import torch
    import torch.distributed as dist

    import collectives

    part, path, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store = dist.FileStore(path)  # type: ignore[attr-defined]
    with collectives.Communicator.from_store(store, rank, 2, timeout=30) as comm:
        found = {"ipc": ipc, "staged": staged, "hook": hook}[part](comm, torch)
        everyone = comm._group.comm.agree(bool(found["ok"]))
    if rank == 0:
        print(json.dumps(found | {"ok": everyone}))


if __name__ == "__main__":
    main()
