"""Whole DDP training steps: forward and backward alone, over Gloo, and over treering's hook; interleaved in one run.

    python benchmarks/ddp.py -n 2 [--models mlp,cnn] [--steps 60] [--table FILE] [--json FILE]

A step's time is its slowest rank's. Gradients are compared too: a fast step that computes something else is no step.
Exit status 1 where they differ by more than rounding (on two ranks: by anything).
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import collectives
from integrations.torch_ddp import register
from integrations.torch_launch import init_process_group
from tuner import launch
from tuner.statistics import median_interval, ratio_interval

WARM_UP = 10


def mlp() -> tuple[nn.Module, torch.Tensor]:
    """6.3 M parameters, batch 16."""
    blocks = [block for _ in range(6) for block in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*blocks), torch.randn(16, 1024)


def cnn() -> tuple[nn.Module, torch.Tensor]:
    """1.7 M parameters, batch 8."""
    convolutions = [
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1, stride=2), nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2), nn.ReLU(),
    ]  # fmt: skip
    dense = [nn.Flatten(), nn.Linear(128 * 7 * 7, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(*convolutions, *dense), torch.randn(8, 3, 32, 32)


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {"mlp": mlp, "cnn": cnn}


def measure(name: str, steps: int, table: str | None, comm: collectives.Communicator) -> list[dict[str, Any]]:
    """A row for each contender: milliseconds of a step, and the ratio to Gloo's of the same moment."""

    def model() -> nn.Module:
        torch.manual_seed(0)
        return MODELS[name]()[0]

    batch = MODELS[name]()[1] * (1 + comm.rank)
    gloo, ours = (DistributedDataParallel(model(), gradient_as_bucket_view=True) for _ in range(2))
    state = register(ours, table=table)
    contenders = {"alone": model(), "gloo": gloo, "treering": ours}
    seconds: dict[str, list[float]] = {contender: [] for contender in contenders}
    order, shuffle = list(contenders), random.Random(1)
    for step in range(WARM_UP + steps):
        shuffle.shuffle(order)
        for contender in order:
            contenders[contender].zero_grad(set_to_none=False)
            comm.barrier()
            start = time.perf_counter()
            loss: torch.Tensor = contenders[contender](batch).square().mean()
            loss.backward()
            if step >= WARM_UP:
                seconds[contender].append(time.perf_counter() - start)
    drift = max(
        float((a.grad - b.grad).abs().max() / a.grad.abs().max().clamp(min=1e-30))
        for a, b in zip(gloo.parameters(), ours.parameters(), strict=True)
        if a.grad is not None and b.grad is not None
    )
    slowest = {key: comm.allreduce(torch.tensor(times).double(), op="max").tolist() for key, times in seconds.items()}
    algorithms = sorted({row["algorithm"] for row in state.report()})
    state.close()
    rows = []
    for contender, times in slowest.items():
        time_ms, ratio = median_interval([1e3 * t for t in times]), ratio_interval(times, slowest["gloo"])
        rows.append(
            {
                "model": name, "contender": contender, "median_ms": time_ms.median, "low_ms": time_ms.low,
                "high_ms": time_ms.high, "over_gloo": ratio.median, "over_gloo_low": ratio.low,
                "over_gloo_high": ratio.high, "gradient_difference": drift if contender == "treering" else 0.0,
                "algorithms": algorithms if contender == "treering" else [],
            }
        )  # fmt: skip
    return rows


def run(options: argparse.Namespace) -> int:
    init_process_group()
    comm = collectives.Communicator()
    threads = max(1, len(os.sched_getaffinity(0)) // max(comm.topology.ranks_per_node))
    torch.set_num_threads(threads)
    rows = [row for name in options.models.split(",") for row in measure(name, options.steps, options.table, comm)]
    if comm.rank == 0:
        print(f"{'model':8}{'contender':12}{'ms a step':>12}{'95 % interval':>18}{'over Gloo':>12}")
        for row in rows:
            interval = f"{row['low_ms']:.2f} to {row['high_ms']:.2f}"
            print(
                f"{row['model']:8}{row['contender']:12}{row['median_ms']:12.2f}{interval:>18}{row['over_gloo']:12.2f}"
                f"   {', '.join(row['algorithms'])}"
            )
        if options.json:
            context = {"ranks": comm.size, "topology": comm.topology.fingerprint, "torch": torch.__version__}
            options.json.write_text(json.dumps({"context": {**context, "threads": threads}, "rows": rows}, indent=1))
    allowed = 0.0 if comm.size <= 2 else 1e-4
    return int(any(row["gradient_difference"] > allowed for row in rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, default=2, help="how many ranks to start")
    parser.add_argument("--models", default="mlp,cnn", help="of " + ", ".join(MODELS))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--table", help="a tuning table, as `treering tune` writes it")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    if unknown := set(options.models.split(",")) - set(MODELS):
        parser.error(f"--models: {', '.join(sorted(unknown))} unknown; there are {', '.join(MODELS)}")
    if launch.announced() is not None:
        return run(options)
    ranks = launch.command(options.ranks, sys.argv)
    return subprocess.run(ranks.command, env={**os.environ, **ranks.environment}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
