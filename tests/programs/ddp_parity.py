"""Pairs of equal models, one on plain DDP over Gloo, one with treering's hook: their gradients must be equal bitwise.

Weights, inputs and the losses' factors are small whole numbers, and losses are multiplied by the number of ranks, so
every sum is exact whatever its order. Rank 0 prints one JSON line a case: {"case": ..., "wrong": [...]}.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper
from torch.nn.parallel import DistributedDataParallel

from collectives.algorithms import names
from collectives.table import Place, Rule, Table
from integrations.torch_ddp import DDPHookState, allreduce_hook, register
from integrations.torch_launch import init_process_group
from tests.programs import world

STEPS = 6  # buckets are rebuilt after the first, and some faults show only later
WIDTH = 8


def whole(*shape: int, seed: int, high: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Whole numbers from -high to high."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-high, high + 1, shape, generator=generator).to(dtype)


def with_whole_weights(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(whole(*parameter.shape, seed=seed))
    return model


def layers(count: int, width: int = WIDTH) -> nn.Module:
    blocks = [block for _ in range(count) for block in (nn.Linear(width, width), nn.ReLU())]
    return with_whole_weights(nn.Sequential(*blocks[:-1]))


class Heads(nn.Module):
    """Two heads, of which a step uses one; and a layer that nobody ever uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.idle = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.heads = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor, head: int = 0) -> torch.Tensor:
        return self.heads[head](self.body(x))


class Mixed(nn.Module):
    """Parameters of four dtypes: DDP gives each its own buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=dtype) for dtype in self.dtypes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outs = [part(x.to(dtype)).double() for part, dtype in zip(self.parts, self.dtypes, strict=True)]
        return torch.stack(outs)


def backward(
    model: nn.Module, step: int, *arguments: Any, dtype: torch.dtype = torch.float32, scale: int = world.SIZE
) -> None:
    """One forward and backward on this rank's own whole numbers."""
    seed = 1000 * world.RANK + step
    width = next(model.parameters()).shape[-1]
    out = model(whole(4, width, seed=seed, dtype=dtype), *arguments)
    factors = whole(*out.shape, seed=seed + 500, high=2, dtype=torch.float64)
    loss = ((out.real if out.is_complex() else out) * factors).sum() * scale
    loss.backward()


def accumulate(model: DistributedDataParallel, step: int) -> None:
    with model.no_sync():
        backward(model, 3 * step)
        backward(model, 3 * step + 1)
    backward(model, 3 * step + 2)


def twice(model: nn.Module, step: int) -> None:
    """Two synchronised backwards without zeroing between them: the second averages the first's average too."""
    backward(model, 2 * step, scale=world.SIZE**2)
    backward(model, 2 * step + 1)


def heads(model: nn.Module, step: int) -> None:
    """One head for all in even steps, another on each rank in odd ones."""
    backward(model, step, (step + world.RANK * (step % 2)) % 2)


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module] = lambda: layers(3)
    step: Callable[..., None] = backward
    options: dict[str, Any] = field(default_factory=dict)  # of DistributedDataParallel
    to_none: bool = True
    steps: int = STEPS

    def run(self) -> Iterator[str]:
        plain, ours = (DistributedDataParallel(self.model(), **self.options) for _ in range(2))
        state = register(ours)
        for step in range(self.steps):
            for model in (plain, ours):
                self.step(model, step)
            yield from differences(plain, ours, f"step {step}")
            yield from ranks_differ(ours, f"step {step}")
            for model in (plain, ours):
                model.zero_grad(set_to_none=self.to_none)
        state.close()


def differences(plain: nn.Module, ours: nn.Module, where: str) -> Iterator[str]:
    for (name, one), other in zip(plain.named_parameters(), ours.parameters(), strict=True):
        if (one.grad is None) != (other.grad is None):
            yield f"{where}: {name}: one has no gradient"
        elif one.grad is not None and other.grad is not None and not same_bits(one.grad, other.grad):
            yield f"{where}: {name}: {(one.grad != other.grad).sum().item()} of {one.numel()} differ"
        elif one.grad is not None and not one.grad.isfinite().all():
            yield f"{where}: {name}: not finite, so it proves nothing"


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bits(one) == bits(other)


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).digest()


def ranks_differ(model: nn.Module, where: str) -> Iterator[str]:
    mine = b"".join(bits(parameter.grad) for parameter in model.parameters() if parameter.grad is not None)
    if len(set(world.everyone(mine))) > 1:
        yield f"{where}: the ranks' gradients differ"


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


def wrapped() -> Iterator[str]:
    """PyTorch's float16 wrapper around our hook: small whole numbers survive it."""
    plain, ours = DistributedDataParallel(layers(1)), DistributedDataParallel(layers(1))
    state = DDPHookState()
    ours.register_comm_hook(state, fp16_compress_wrapper(allreduce_hook))
    for step in range(STEPS):
        backward(plain, step)
        backward(ours, step)
        yield from differences(plain, ours, f"step {step}")
        plain.zero_grad()
        ours.zero_grad()
    if {row["dtype"] for row in state.report()} != {"float16"}:
        yield f"buckets were not compressed: {state.report()}"


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
    for step in range(STEPS):
        backward(model, step)
    rows = state.report()
    total = sum(parameter.nbytes for parameter in model.parameters())
    last = [row for row in rows if row["calls"] == STEPS - 1 or row["calls"] == STEPS]
    if sum(row["bytes"] for row in last) != total:
        yield f"the buckets of the last steps hold {[row['bytes'] for row in last]} bytes, the model {total}"
    if len(last) < 2 or [row["bucket"] for row in rows] != sorted(row["bucket"] for row in rows):
        yield f"buckets missing or out of order: {rows}"
    for row in rows:
        if row["dtype"] != "float32" or row["seconds"] <= 0:
            yield f"wrong row {row}"
        if world.SIZE > 1 and row["algorithm"] not in names("allreduce"):
            yield f"no such algorithm: {row}"


def table() -> Iterator[str]:
    """A tuning table of the state's own, over a communicator that has none."""
    comm = world.communicator()
    found = comm.topology
    place = Place(nodes=len(found.nodes), ranks_per_node=list(found.ranks_per_node), fingerprint=found.fingerprint)
    rule = Rule(collective="allreduce", min_bytes=0, max_bytes=None, algorithm="binomial_tree")
    model = DistributedDataParallel(layers(2))
    state = register(model, comm=comm, table=Table(topology=place, rules=[rule]))
    backward(model, 0)
    if world.SIZE > 1 and {row["algorithm"] for row in state.report()} != {"binomial_tree"}:
        yield f"the table did not serve: {state.report()}"


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
    "uneven inputs": uneven_inputs,
    "two models": two_models,
    "the user's calls": user_calls_between,
    "compression wrapper": wrapped,
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
