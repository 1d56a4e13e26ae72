"""Train a small convolutional network on real handwritten digits with DDP: over Gloo, and over treering's hook.

    mpiexec -n 2 python examples/digits_training.py --table build/demo/table.json

Three equal networks see the same batches with the same seeds: one is plain DDP on Gloo, one is DDP with treering's
hook, one is not distributed and tells what a step costs without communication. Each step trains all three, in random
order, so that whatever else the machine does hits them alike.
"""

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import collectives
from integrations.torch_ddp import BucketReport, register
from integrations.torch_launch import init_process_group

ALONE, GLOO, TREERING = "no communication", "DDP on Gloo", "DDP on treering"
BATCH = 32
Batch = tuple[torch.Tensor, torch.Tensor]


def network() -> nn.Module:
    """285,000 parameters, the same ones whoever makes it."""
    torch.manual_seed(1)
    convolutions = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()]
    return nn.Sequential(
        *convolutions, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 16, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def digits() -> tuple[Batch, Batch]:
    """1,797 images of 8 x 8 pixels with their labels, as (training, test)."""
    data = load_digits()
    images = torch.from_numpy(data.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(data.target).long()
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=0, stratify=data.target)
    return (images[train], labels[train]), (images[test], labels[test])


def batches(data: Batch, epochs: int, rank: int, size: int) -> Iterator[Batch]:
    """This rank's share of each epoch's shuffled images; every rank gets the same number of batches."""
    images, labels = data
    shuffle = torch.Generator().manual_seed(2)
    for _ in range(epochs):
        order = torch.randperm(len(labels), generator=shuffle)
        for start in range(0, len(labels) - size * BATCH + 1, size * BATCH):
            mine = order[start + rank * BATCH : start + (rank + 1) * BATCH]
            yield images[mine], labels[mine]


def trainer(model: nn.Module) -> Callable[[Batch], None]:
    """One step: forward, backward (with whatever DDP does in it), and the optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(batch: Batch) -> None:
        images, labels = batch
        optimizer.zero_grad()
        loss: torch.Tensor = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def accuracy(model: nn.Module, data: Batch) -> float:
    images, labels = data
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).double().mean())


def slowest_ms(comm: collectives.Communicator, seconds: list[float]) -> float:
    """Milliseconds of a step: each step's time is its slowest rank's, and the figure is their median."""
    slowest: list[float] = comm.allreduce(torch.tensor(seconds, dtype=torch.float64), op="max").tolist()
    return 1e3 * statistics.median(slowest[len(slowest) // 10 :])  # the first steps warm up


def print_results(
    step_ms: dict[str, float], accuracies: dict[str, float], drift: float, buckets: list[BucketReport]
) -> None:
    print(f"{'':22}{'accuracy':>10}{'ms a step':>12}{'of it for DDP':>16}")
    for name, ms in step_ms.items():
        right = f"{100 * accuracies[name]:.1f} %" if name in accuracies else ""
        share = f"{ms - step_ms[ALONE]:.2f} ms" if name in accuracies else ""
        print(f"{name:22}{right:>10}{ms:12.2f}{share:>16}")
    print(f"\nLargest difference between the two networks' weights after training: {drift:g}")
    print("\nWhat treering did in DDP's buckets (waiting for the other rank included):")
    for row in buckets:
        each = 1e3 * row["seconds"] / row["calls"]
        print(
            f"  bucket {row['bucket']}: {row['bytes']:>9,} bytes of {row['dtype']}, {row['calls']:>4} times "
            f"{row['algorithm']}, {each:.3f} ms each"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", help="a tuning table, as `treering tune` writes it")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--output", type=Path, help="write accuracies and times here, as JSON")
    options = parser.parse_args()

    init_process_group()
    comm = collectives.Communicator()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // max(comm.topology.ranks_per_node)))

    over_gloo, over_treering = (DistributedDataParallel(network(), gradient_as_bucket_view=True) for _ in range(2))
    state = register(over_treering, table=options.table)  # the one line that a training script needs
    models = {ALONE: network(), GLOO: over_gloo, TREERING: over_treering}

    train, test = digits()
    steps = {name: trainer(model) for name, model in models.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    order, shuffle = list(models), random.Random(3)
    for batch in batches(train, options.epochs, comm.rank, comm.size):
        shuffle.shuffle(order)
        for name in order:
            comm.barrier()
            start = time.perf_counter()
            steps[name](batch)
            seconds[name].append(time.perf_counter() - start)

    step_ms = {name: slowest_ms(comm, times) for name, times in seconds.items()}
    accuracies = {name: accuracy(models[name], test) for name in (GLOO, TREERING)}
    pairs = zip(over_gloo.parameters(), over_treering.parameters(), strict=True)
    drift = max((one - other).abs().max().item() for one, other in pairs)
    buckets = state.report()
    if comm.rank == 0:
        print_results(step_ms, accuracies, drift, buckets)
        if options.output:
            gloo, ours = ({"accuracy": accuracies[name], "step_ms": step_ms[name]} for name in (GLOO, TREERING))
            algorithms = sorted({row["algorithm"] for row in buckets})
            figures = {"gloo": gloo, "treering": {**ours, "algorithms": algorithms}, "max_weight_difference": drift}
            options.output.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
