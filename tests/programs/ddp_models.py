"""Models of whole numbers, pairs of them, and what differs between their gradients: for the DDP programs here.

Weights, inputs and the losses' factors are small whole numbers, and losses are multiplied by the number of ranks, so
every sum is exact whatever its order.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from integrations.torch_ddp import register
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
    keywords: dict[str, Any] = field(default_factory=dict)  # of register

    def run(self) -> Iterator[str]:
        plain, ours = (DistributedDataParallel(self.model(), **self.options) for _ in range(2))
        state = register(ours, **self.keywords)
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
