"""Pairs of equal models, one on plain DDP over Gloo, one with treering's hook: their gradients must be equal bitwise.

Rank 0 prints one JSON line a case: {"case": ..., "wrong": [...]}. ddp_models.py says why every sum is exact.
"""

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_wrapper, fp16_compress_wrapper
from torch.nn.parallel import DistributedDataParallel

from collectives.algorithms import names
from collectives.tables.advice import BucketAdvice, Measured
from collectives.tables.table import Place, Rule, Table
from integrations import overlap
from integrations.bucket_advice import signature
from integrations.torch_ddp import DDPHookState, allreduce_hook, register
from integrations.torch_launch import init_process_group
from tests.programs import world
from tests.programs.ddp_models import (
    STEPS,
    WIDTH,
    Case,
    Heads,
    Mixed,
    accumulate,
    backward,
    bits,
    differences,
    heads,
    layers,
    ranks_differ,
    same_bits,
    twice,
    whole,
    with_whole_weights,
)


def two_models() -> Iterator[str]:
    """Two models in one backward pass: their buckets interleave as autograd likes, each on its own communicator."""
    pairs = [(DistributedDataParallel(layers(3)), DistributedDataParallel(layers(2))) for _ in range(2)]
    for model in pairs[1]:
        register(model)
    for step in range(STEPS):
        for first, second in pairs:
            x = whole(4, WIDTH, seed=1000 * world.RANK + step)
            ((first(x).sum() + 2 * second(x).sum()) * world.SIZE).backward()
        for plain, ours in zip(*pairs, strict=True):
            yield from differences(plain, ours, f"step {step}")
            plain.zero_grad()
            ours.zero_grad()


def user_calls_between() -> Iterator[str]:
    """A tensor hook of the user's reduces on the communicator that the state was made from, in mid-backward."""
    comm = world.communicator()
    plain, ours = (
        DistributedDataParallel(layers(6), bucket_cap_mb=0.0005),
        DistributedDataParallel(layers(6), bucket_cap_mb=0.0005),
    )
    register(ours, comm=comm)
    seen = []
    for module in list(ours.module.children())[::2]:
        module.weight.register_hook(lambda _: seen.append(comm.allreduce(torch.ones(3)).sum().item()))
    for step in range(STEPS):
        backward(plain, step)
        backward(ours, step)
        yield from differences(plain, ours, f"step {step}")
        plain.zero_grad()
        ours.zero_grad()
    if seen != [3.0 * world.SIZE] * 6 * STEPS:
        yield f"the user's own sums are wrong: {seen}"


def uneven_inputs() -> Iterator[str]:
    """Rank 0 has five batches, the others seven: whoever ends first shadows the others' collectives."""
    plain, ours = DistributedDataParallel(layers(1)), DistributedDataParallel(layers(1))
    register(ours)
    for model in (plain, ours):
        with model.join():
            for batch in range(5 if world.RANK == 0 else 7):
                backward(model, batch)
                with torch.no_grad():
                    for parameter in model.parameters():
                        assert parameter.grad is not None
                        parameter.sub_(parameter.grad)
                model.zero_grad()
    for one, other in zip(plain.parameters(), ours.parameters(), strict=True):
        if not same_bits(one, other):
            yield f"{(one != other).sum().item()} of {one.numel()} weights differ"
        if len(set(world.everyone(bits(other)))) > 1:
            yield "the ranks' weights differ"


def wrapped(wrapper: Callable[..., Any], dtype: str) -> Iterator[str]:
    """PyTorch's own wrappers around our hook, which make a new tensor each step: small whole numbers survive them."""
    plain, ours = DistributedDataParallel(layers(1)), DistributedDataParallel(layers(1))
    state = DDPHookState()
    hook = wrapper(allreduce_hook)
    hook.__name__ = "wrapped"  # PyTorch refuses its bfloat16 wrapper, by name, where there is no CUDA
    ours.register_comm_hook(state, hook)
    for step in range(STEPS):
        backward(plain, step)
        backward(ours, step)
        yield from differences(plain, ours, f"step {step}")
        plain.zero_grad()
        ours.zero_grad()
    if {row["dtype"] for row in state.report()} != {dtype}:
        yield f"buckets were not compressed: {state.report()}"


def tried_out() -> Iterator[str]:
    """overlap="auto" as where cores are free: steps inline and with the helper, in turn, and then the faster way."""
    steps = overlap.SETTLING_STEPS + 2 * overlap.TRIAL_STEPS
    model = DistributedDataParallel(layers(3), bucket_cap_mb=0.0005)
    with mock.patch.object(overlap, "spare_cores", return_value=1):
        state = register(model)
    seen = []
    for step in range(steps + 1):
        seen.append(state.mode)
        (model(torch.ones(1, WIDTH)).sum() * (world.RANK + 1)).backward()
        if model.module[-1].bias.grad.tolist() != [(world.SIZE + 1) / 2] * WIDTH:
            yield f"step {step}, {seen[-1]}: wrong average"
        model.zero_grad()
    trial = state._progress.trial
    wanted = overlap.TRIAL_STEPS if world.SIZE > 1 else 0
    if seen[:steps].count("thread") != wanted or (trial is not None and trial.verdict != seen[steps]):
        yield f"steps were done {seen}"
    state.close()


def closed_while_busy() -> Iterator[str]:
    """What the helper thread has begun is done before its communicator is closed; closing again does nothing."""
    state = DDPHookState(overlap="thread")
    tensors = [torch.full((1 << 18,), world.RANK + 1.0) for _ in range(4)]
    for index, tensor in enumerate(tensors):
        state.begin(tensor, index)
    state.close()
    state.close()
    for index, tensor in enumerate(tensors):
        if not bool((tensor == (world.SIZE + 1) / 2).all()):
            yield f"tensor {index} was not averaged"


def sub_groups() -> Iterator[str]:
    """Models of parts of the ranks, each with a process group and a communicator of its own."""
    parts = [[rank for rank in range(world.SIZE) if rank % 2 == part] for part in range(2)]
    groups = [dist.new_group(ranks) for ranks in parts if ranks]
    mine = world.RANK % 2
    comm = world.communicator().split(mine)
    plain, ours = (DistributedDataParallel(layers(3), process_group=groups[mine]) for _ in range(2))
    register(ours, comm=comm)
    for step in range(STEPS):
        for model in (plain, ours):
            backward(model, step, scale=len(parts[mine]))
        yield from differences(plain, ours, f"step {step}")
        for model in (plain, ours):
            model.zero_grad()


def infinite_gradient() -> Iterator[str]:
    """A GradScaler and an Inf on one rank: every rank leaves the step out and lowers the scale, as with plain DDP."""
    pair = [DistributedDataParallel(layers(2)) for _ in range(2)]
    register(pair[1])
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in pair]
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100) for _ in pair]
    for step in range(STEPS):
        for model, optimizer, scaler in zip(pair, optimizers, scalers, strict=True):
            loss = model(whole(4, WIDTH, seed=1000 * world.RANK + step)).sum() * world.SIZE
            scaler.scale(loss * (torch.inf if step == 3 and world.RANK == 0 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        for one, other in zip(*(model.parameters() for model in pair), strict=True):
            if not same_bits(one, other):
                yield f"step {step}: weights differ"
    scales = world.everyone([scaler.get_scale() for scaler in scalers])
    if scales != [[4.0, 4.0]] * world.SIZE:
        yield f"the scales are {scales}"


def compiled() -> Iterator[str]:
    """torch.compile around DDP, whose hooks it leaves alone. (No code is generated: that is not what is tested.)"""
    plain, ours = (DistributedDataParallel(layers(3)) for _ in range(2))
    register(ours)
    fast: Any = torch.compile(ours, backend="eager")
    for step in range(STEPS):
        backward(plain, step)
        backward(fast, step)
        yield from differences(plain, ours, f"step {step}")
        plain.zero_grad()
        ours.zero_grad()


def real_training() -> Iterator[str]:
    """Real numbers, momentum, weights that move. Two summands have one sum, so two ranks must equal Gloo bitwise."""

    def network() -> nn.Module:
        torch.manual_seed(7)
        convolutions = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU()]
        return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(16 * 16, 10))

    options: dict[str, Any] = {"bucket_cap_mb": 0.005, "gradient_as_bucket_view": True}
    plain, ours = (DistributedDataParallel(network(), **options) for _ in range(2))
    pair = (plain, ours)
    register(ours)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in pair]
    generator = torch.Generator().manual_seed(world.RANK)
    for step in range(12):
        x, y = torch.randn(16, 1, 8, 8, generator=generator), torch.randint(0, 10, (16,), generator=generator)
        for model, optimizer in zip(pair, optimizers, strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        if world.SIZE <= 2:
            yield from differences(plain, ours, f"step {step}")
        yield from ranks_differ(ours, f"step {step}")
    for one, other in zip(plain.parameters(), ours.parameters(), strict=True):
        if not torch.allclose(one, other, rtol=1e-4, atol=1e-6):
            yield f"weights drifted by {(one - other).abs().max().item():.2g}"


def report() -> Iterator[str]:
    """What the state tells about its buckets, before and after DDP rebuilds them."""
    model = DistributedDataParallel(layers(4, 16), bucket_cap_mb=0.002)
    state = register(model)
    with torch.autograd.profiler.profile() as profile:
        backward(model, 0)
    for step in range(1, STEPS):
        backward(model, step)
    rows = state.report()
    seen = {event.name for event in profile.function_events if event.name.startswith("treering: ")}
    for row in (row for row in rows if row["calls"] == 1):
        expected = {  # before its first call it is not known whether the bucket is symmetric on all ranks
            f"treering: wait for bucket {row['bucket']}, allreduce {name}, {row['bytes']} bytes"
            for name in names("allreduce")
        }
        if not expected & seen:
            yield f"the profiler has not seen bucket {row['bucket']} but {sorted(seen)}"
    total = sum(parameter.nbytes for parameter in model.parameters())
    last = [row for row in rows if row["calls"] == STEPS - 1 or row["calls"] == STEPS]
    if sum(row["bytes"] for row in last) != total:
        yield f"the buckets of the last steps hold {[row['bytes'] for row in last]} bytes, the model {total}"
    if len(last) < 2 or [row["bucket"] for row in rows] != sorted(row["bucket"] for row in rows):
        yield f"buckets missing or out of order: {rows}"
    for row in rows:
        if row["dtype"] != "float32" or row["seconds"] <= 0 or row["overlap"] != 0 or not 0 < row["share"] < 1:
            yield f"wrong row {row}"
        late = row["waits_for"]
        if (late is None) != (world.SIZE == 1) or (late and sum(late.values()) != row["calls"]):
            yield f"who came last: {row}"
        if world.SIZE > 1 and row["algorithm"] not in names("allreduce"):
            yield f"no such algorithm: {row}"


def table() -> Iterator[str]:
    """A tuning table of the state's own, over a communicator that has none."""
    comm = world.communicator()
    found = comm.topology
    place = Place(nodes=len(found.nodes), ranks_per_node=list(found.ranks_per_node), fingerprint=found.fingerprint)
    rule = Rule(collective="allreduce", min_bytes=0, max_bytes=None, algorithm="binomial_tree")
    ways = [way(None, 1.0), way(7.0, 0.5)]
    advice = BucketAdvice(model="here", signature=signature(layers(2)), best=1, measured=ways)
    for cap, serves, says in ((None, "binomial_tree", "50% faster"), (7.0, "ring", "")):
        model, said = DistributedDataParallel(layers(2), bucket_cap_mb=cap), io.StringIO()
        with contextlib.redirect_stderr(said):
            state = register(model, comm=comm, table=Table(topology=place, rules=[rule], ddp=[advice]))
        backward(model, 0)
        if world.SIZE > 1 and {row["algorithm"] for row in state.report()} != {serves}:
            yield f"the table did not serve: {state.report()}"
        if world.RANK == 0 and (says not in said.getvalue() or bool(says) != ("bucket_cap_mb=7" in said.getvalue())):
            yield f"registering said {said.getvalue()!r}"


def way(cap: float | None, ratio: float) -> Measured:
    """By ring, where the bucket size is given."""
    fields = ("median_ms", "low_ms", "high_ms", "over_default", "over_default_low", "over_default_high")
    about: dict[str, Any] = {"bucket_cap_mb": cap, "algorithm": "ring" if cap else None, "buckets": [576]}
    return Measured(**about | dict.fromkeys(fields, ratio))


VIEWS = {"gradient_as_bucket_view": True}
CASES: dict[str, Callable[[], Iterator[str]]] = {
    "plain": Case().run,
    "plain, gradients zeroed": Case(to_none=False).run,
    "bucket views": Case(options=VIEWS).run,
    "bucket views, gradients zeroed": Case(options=VIEWS, to_none=False).run,
    "unused parameters": Case(lambda: with_whole_weights(Heads()), heads, {"find_unused_parameters": True}).run,
    "unused parameters, bucket views": Case(
        lambda: with_whole_weights(Heads()), heads, {"find_unused_parameters": True, **VIEWS}
    ).run,
    "static graph": Case(options={"static_graph": True}).run,
    "static graph, bucket views": Case(options={"static_graph": True, **VIEWS}, to_none=False).run,
    "accumulation": Case(step=accumulate).run,
    "accumulation, bucket views": Case(step=accumulate, options=VIEWS, to_none=False).run,
    "two backwards": Case(step=twice).run,
    "two backwards, bucket views": Case(step=twice, options=VIEWS).run,
    "1 KB buckets": Case(lambda: layers(4, 16), options={"bucket_cap_mb": 0.001}).run,
    "100 MB bucket": Case(lambda: layers(1, 5000), options={"bucket_cap_mb": 100}, steps=3).run,
    "several dtypes": Case(lambda: with_whole_weights(Mixed())).run,
    "complex": Case(
        lambda: with_whole_weights(nn.Linear(WIDTH, WIDTH, dtype=torch.complex64)),
        lambda model, step: backward(model, step, dtype=torch.complex64),
    ).run,
    "helper thread": Case(lambda: layers(4, 16), options={"bucket_cap_mb": 0.001}, keywords={"overlap": "thread"}).run,
    "helper thread, bucket views, accumulation": Case(
        step=accumulate, options=VIEWS, to_none=False, keywords={"overlap": "thread"}
    ).run,
    "helper thread, static graph": Case(options={"static_graph": True}, keywords={"overlap": "thread"}).run,
    "closed while busy": closed_while_busy,
    "overlap tried out": tried_out,
    "uneven inputs": uneven_inputs,
    "two models": two_models,
    "the user's calls": user_calls_between,
    "sub-groups": sub_groups,
    "float16 wrapper": lambda: wrapped(fp16_compress_wrapper, "float16"),
    "bfloat16 wrapper": lambda: wrapped(bf16_compress_wrapper, "bfloat16"),
    "infinite gradient": infinite_gradient,
    "compiled": compiled,
    "real training": real_training,
    "report": report,
    "table": table,
}


def main() -> None:
    torch.set_num_threads(1)
    init_process_group(timeout=100)
    for name, case in CASES.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        wrong = [f"rank {world.RANK}: {text}" for text in case()]
        everyone = world.everyone(wrong[:3])
        if world.RANK == 0:
            print(json.dumps({"case": name, "wrong": [text for texts in everyone for text in texts]}), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
