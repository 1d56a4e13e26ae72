"""Whole DDP training steps: forward and backward alone, over Gloo, and over treering's hook; interleaved in one run.

    python -m benchmarks.ddp -n 2,4 [--models mlp,cnn] [--steps 60] [--table FILE] [--json FILE] [--plot FILE]
    python -m benchmarks.ddp --beds 2x1,2x2 --models mlp --steps 20     # on hosts, as benchmarks.hosts makes them

A step's time is its slowest rank's. Printed are medians, paired ratios with their 95 % interval, and which of the
project's goals are met. Gradients are compared too: a fast step that computes something else is no step. Exit status 1
where they differ by more than rounding (on two ranks: by anything), or where a launch failed.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import collectives
from benchmarks.ddp_plot import CONTENDERS, give, summary
from benchmarks.hosts import run_on
from benchmarks.peers_plot import machine
from integrations.overlap import SETTLING_STEPS, TRIAL_STEPS
from integrations.torch_ddp import register
from integrations.torch_launch import init_process_group
from tests.hosts.bed import NoBed
from tests.launch import Hang
from tuner import launch

WARM_UP = 10
Made = tuple[nn.Module, torch.Tensor]


def mlp() -> Made:
    """6.3 M parameters, batch 16."""
    blocks = [block for _ in range(6) for block in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*blocks), torch.randn(16, 1024)


def cnn() -> Made:
    """1.7 M parameters, batch 8."""
    convolutions = [
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1, stride=2), nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2), nn.ReLU(),
    ]  # fmt: skip
    dense = [nn.Flatten(), nn.Linear(128 * 7 * 7, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(*convolutions, *dense), torch.randn(8, 3, 32, 32)


def transformer() -> Made:
    """10 M parameters: an embedding, three encoder layers 512 wide, a head; batch 4, of 16 tokens each."""
    layers = [nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True) for _ in range(3)]
    tokens = torch.randint(0, 512, (4, 16))
    return nn.Sequential(nn.Embedding(512, 512), *layers, nn.Linear(512, 512)), tokens


MODELS: dict[str, Callable[[], Made]] = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


# ---------------------------------------------------------------- what each rank does
def measure(name: str, steps: int, options: argparse.Namespace, comm: collectives.Communicator) -> dict[str, Any]:
    """Milliseconds of each contender's steps, the slowest rank's, in the order in which they were taken."""

    def model() -> nn.Module:
        torch.manual_seed(0)
        return MODELS[name]()[0]

    torch.manual_seed(1 + comm.rank)
    batch = MODELS[name]()[1]

    def step(contender: nn.Module) -> float:
        contender.zero_grad(set_to_none=False)
        comm.barrier()
        start = time.perf_counter()
        contender(batch).square().mean().backward()
        return time.perf_counter() - start

    contenders, first = {"alone": model()}, {}
    step(contenders["alone"])  # whatever torch makes at first use, for all of them
    for contender in CONTENDERS[1:]:
        comm.barrier()
        start = time.perf_counter()
        ddp = contenders[contender] = DistributedDataParallel(model(), gradient_as_bucket_view=True)
        if contender == "treering":
            state = register(ddp, table=options.table, overlap=options.overlap)
        step(ddp)
        first[contender] = time.perf_counter() - start
    seconds: dict[str, list[float]] = {contender: [] for contender in contenders}
    order, shuffle = list(contenders), random.Random(1)
    warm_up = SETTLING_STEPS + 2 * TRIAL_STEPS if state.settling else WARM_UP
    for number in range(warm_up + steps):
        shuffle.shuffle(order)
        for contender in order:
            taken = step(contenders[contender])
            if number >= warm_up:
                seconds[contender].append(taken)
    drift = max(
        float((a.grad - b.grad).abs().max() / a.grad.abs().max().clamp(min=1e-30))
        for a, b in zip(contenders["gloo"].parameters(), contenders["treering"].parameters(), strict=True)
        if a.grad is not None and b.grad is not None
    )

    def slowest(values: list[float]) -> list[float]:
        found: list[float] = comm.allreduce(torch.tensor(values).double(), op="max").tolist()
        return found

    times = {key: [1e3 * each for each in slowest(values)] for key, values in seconds.items()}
    report = state.report()
    state.close()
    return {
        "model": name, "ms": times, "first_step_s": dict(zip(first, slowest(list(first.values())), strict=True)),
        "gradient_difference": max(slowest([drift])), "buckets": report,
    }  # fmt: skip


def run(options: argparse.Namespace) -> int:
    init_process_group()
    comm = collectives.Communicator()
    threads = max(1, len(os.sched_getaffinity(0)) // max(comm.topology.ranks_per_node))
    torch.set_num_threads(threads)
    cases = [measure(name, options.steps, options, comm) for name in options.models.split(",")]
    if comm.rank == 0:
        found = {"ranks": comm.size, "topology": comm.topology.fingerprint, "threads": threads, "cases": cases}
        options.json.write_text(json.dumps(found))
    comm.close()
    return 0


# ---------------------------------------------------------------- what starts them
def launch_of(ranks: str, file: Path, _: argparse.Namespace) -> None:
    """This very command as ranks of this machine. RuntimeError where it failed."""
    started = launch.command(int(ranks), ["-m", "benchmarks.ddp", *sys.argv[1:], "--json", str(file)])
    settings = {**os.environ, **started.environment}
    if status := subprocess.run(started.command, env=settings, check=False).returncode:
        raise RuntimeError(f"{ranks} ranks ended with {status}")


def launch_on(bed: str, file: Path, options: argparse.Namespace) -> None:
    """This very command as ranks on a bed of hosts. RuntimeError where it failed."""
    program = ["-m", "benchmarks.ddp", *sys.argv[1:], "--json", str(file)]
    run_on(bed, options.library, program, options.rate, 300 + 2.0 * options.steps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # fmt: off
    parser.add_argument("-n", "--ranks", default="2", help="how many ranks to start: 2, or 2,4 for a launch of each")
    parser.add_argument("--beds", help="ranks on hosts instead: 2x1,2x2 (root, ip and tc)")
    parser.add_argument("--library", default="openmpi", help="that starts ranks on hosts (default: %(default)s)")
    parser.add_argument("--rate", default="1gbit", help="of each host's link, each way (default: %(default)s)")
    parser.add_argument("--models", default=",".join(MODELS), help="of " + ", ".join(MODELS))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--table", help="a tuning table, as `treering tune` writes it")
    parser.add_argument("--overlap", choices=("auto", "thread", "inline"), default="auto")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plot", type=Path, help="draw them here (.png, .svg or .pdf)")
    # fmt: on
    options = parser.parse_args()
    if unknown := set(options.models.split(",")) - set(MODELS):
        parser.error(f"--models: {', '.join(sorted(unknown))} unknown; there are {', '.join(MODELS)}")
    if launch.announced() is not None:
        return run(options)
    start, wanted = (launch_on, options.beds) if options.beds else (launch_of, options.ranks)
    rows, failed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for number, where in enumerate(wanted.split(",")):
            file = Path(folder, f"{number}.json")
            try:
                start(where, file, options)
                rows += summary(json.loads(file.read_text()), options.beds and where)
            except NoBed as error:
                parser.exit(1, f"no hosts here: {error}\n")
            except (RuntimeError, Hang) as error:
                print(error, file=sys.stderr, flush=True)
                failed = 1
    return max(give(machine(), rows, options.json, options.plot), failed)


if __name__ == "__main__":
    sys.exit(main())
