"""torch.distributed over treering's backend beside Gloo: single calls, DDP's steps and FSDP2's, interleaved in one run.

    python -m benchmarks.backend -n 2 [--only calls,ddp,fsdp2] [--sizes 1024,16384,1048576] [--steps 40] [--json FILE]

Beside DDP's steps stand forward and backward alone. A time is the slowest rank's; of calls it is that of the call in
torch.distributed, Python included. Printed are medians, and the ratio of pairs taken in the same repetition with its
95 % interval. Gloo's threads slow what runs right after it, also treering's calls.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.ddp import mlp, transformer
from benchmarks.timing import shown, under_ranks, write
from integrations.torch_backend import TreeringGroup
from integrations.torch_fsdp import register
from integrations.torch_launch import init_process_group
from tuner.statistics import median_interval

SIZES = "1024,4096,16384,65536,262144,1048576,4194304,16777216"
WARM_UP = 5
gather_into = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its newer name
reduce_into = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
Groups = dict[str, Any]


def interleaved(calls: Mapping[str, Callable[[], object]], ours: Any, times: int) -> dict[str, list[float]]:
    """Microseconds of each repetition, of the slowest rank; names in random order within a repetition."""
    order, shuffle = list(calls), random.Random(1)
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(WARM_UP + times):
        shuffle.shuffle(order)
        for name in order:
            ours.comm.barrier()
            begin = time.perf_counter()
            calls[name]()
            taken = time.perf_counter() - begin
            if number >= WARM_UP:
                found[name].append(1e6 * taken)
    slowest = {name: torch.tensor(values).double() for name, values in found.items()}
    for values in slowest.values():
        ours.comm.allreduce(values, op="max")
    return {name: values.tolist() for name, values in slowest.items()}


def row(what: str, n_bytes: int, times: dict[str, list[float]]) -> dict[str, Any]:
    ratio = median_interval([ours / gloo for ours, gloo in zip(times["treering"], times["gloo"], strict=True)])
    medians = {name: median_interval(values).median for name, values in times.items()}
    if dist.get_rank() == 0:
        said = "   ".join(f"{name} {median:10.1f} us" for name, median in medians.items())
        print(f"{what:24} {n_bytes:9} B   {said}   treering/gloo {shown(ratio)}", flush=True)
    return {"what": what, "bytes": n_bytes, "median_us": medians, "ratio": [ratio.median, ratio.low, ratio.high]}


def calls(groups: Groups, n_bytes: int, times: int) -> list[dict[str, Any]]:
    """n_bytes: of the whole message."""
    size = dist.get_world_size()
    whole, part = torch.ones(n_bytes // 4), torch.ones(n_bytes // 4 // size)
    kinds: dict[str, Callable[[Any], object]] = {
        "all_reduce": lambda group: dist.all_reduce(whole, dist.ReduceOp.MAX, group),
        "all_gather_into_tensor": lambda group: gather_into(whole, part, group),
        "reduce_scatter_tensor": lambda group: reduce_into(part, whole, dist.ReduceOp.SUM, group),
    }
    rows = []
    for name, call in kinds.items():
        mine = {contender: partial(call, group) for contender, group in groups.items()}
        whole.fill_(1)
        part.fill_(1)
        rows.append(row(name, n_bytes, interleaved(mine, groups["treering"], times)))
    return rows


def steps(
    groups: Groups, what: str, models: Mapping[str, nn.Module], batch: torch.Tensor, times: int, *, keep: bool = False
) -> Any:
    """keep: gradients stay where they are and are filled with zeros, as in benchmarks.ddp; else new ones each step."""

    def step(model: nn.Module) -> None:
        model.zero_grad(set_to_none=not keep)
        model(batch).square().mean().backward()

    mine = {contender: partial(step, model) for contender, model in models.items()}
    return row(what, 0, interleaved(mine, groups["treering"], times))


def over(groups: Groups, make: Callable[[Any], nn.Module]) -> dict[str, nn.Module]:
    return {contender: make(group) for contender, group in groups.items()}


def ddp(group: Any) -> nn.Module:
    torch.manual_seed(0)
    return DistributedDataParallel(mlp()[0], process_group=group, gradient_as_bucket_view=True)


def fsdp2(group: Any) -> nn.Module:
    torch.manual_seed(0)
    model, mesh = transformer()[0], DeviceMesh.from_group(group, "cpu")
    for layer in model.children():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def registered(group: Any) -> nn.Module:
    """The same; treering's buffers are symmetric memory."""
    model = fsdp2(group)
    if isinstance(group, TreeringGroup):
        register(model)
    return model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--only", default="calls,ddp,fsdp2", help="some of them")
    parser.add_argument("--sizes", default=SIZES, help="bytes of the whole message")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--json")
    options = parser.parse_args()
    status = under_ranks(options.ranks, "benchmarks.backend")
    if status is not None:
        return status
    torch.set_num_threads(1)
    init_process_group("treering")
    groups = {"gloo": dist.new_group(backend="gloo"), "treering": dist.group.WORLD}
    rows: list[dict[str, Any]] = []
    for n_bytes in map(int, options.sizes.split(",")) if "calls" in options.only else ():
        rows += calls(groups, n_bytes, max(20, min(200, (64 << 20) // n_bytes)))
    torch.manual_seed(1 + dist.get_rank())
    if "ddp" in options.only:
        models = {"alone": mlp()[0], **over(groups, ddp)}
        rows.append(steps(groups, "DDP, MLP", models, mlp()[1], options.steps, keep=True))
        rows.append(steps(groups, "DDP, MLP, new gradients", models, mlp()[1], options.steps))
    if "fsdp2" in options.only:
        for what, make in (("FSDP2, transformer", fsdp2), ("FSDP2, registered", registered)):
            rows.append(steps(groups, what, over(groups, make), transformer()[1], options.steps))
    write(options.json, groups["treering"].comm, ranks=dist.get_world_size(), rows=rows)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
