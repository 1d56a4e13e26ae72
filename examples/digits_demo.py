"""treering in three minutes: prove the algorithms, tune this machine, train a real network, and see what it brought.

    make demo            or, in an environment of your own: python examples/digits_demo.py

Two ranks on this machine. Everything is written to build/demo/.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tuner import launch

ROOT = Path(__file__).resolve().parent.parent
RANKS = 2
PROVED = "ring,recursive_doubling,halving_doubling,binomial_tree,double_tree,one_shot,two_shot"


def heading(number: int, title: str, text: str) -> None:
    print(f"\n{number}. {title}\n{'-' * (len(title) + 3)}\n{text}\n", flush=True)


def run(command: Sequence[str], environment: dict[str, str] | None = None, quiet: bool = False) -> None:
    """Run a command with this terminal for its output (progress alone where it is quiet).

    One that fails ends the demo with its exit status.
    """
    out = subprocess.DEVNULL if quiet else None
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **(environment or {})}, stdout=out, check=False)
    if done.returncode:
        sys.exit(f"\nthe demo stopped: exit status {done.returncode} from\n  {' '.join(command)}")


def treering(*arguments: str, quiet: bool = False) -> None:
    print(f"$ treering {' '.join(arguments)}", flush=True)
    run([sys.executable, "-m", "tuner.cli", *arguments], quiet=quiet)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/demo"), help="folder for what the demo writes")
    parser.add_argument("--budget", default="45s", help="how long to tune")
    parser.add_argument("--epochs", type=int, default=20, help="how long to train")
    options = parser.parse_args()
    folder: Path = options.output
    (ROOT / folder).mkdir(parents=True, exist_ok=True)
    table, plot, training = (str(folder / name) for name in ("table.json", "crossover.png", "training.json"))
    start = time.monotonic()
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > 0.5 * cores:
        print(f"\nThis machine is busy (load {load:.1f} on {cores} cores): the times below will not be typical of it.")

    heading(
        1,
        "Prove",
        "Every algorithm is a schedule, and the verifier proves it without running it: each rank's\n"
        "contribution counted once, no deadlock, the same order of additions on every rank.",
    )
    treering("verify", "--ranks", "2-5", "--collective", "allreduce", "--algorithms", PROVED)

    heading(
        2,
        "Tune",
        f"Which algorithm is fastest here depends on the size. {RANKS} ranks measure, beside the MPI library's\n"
        "own allreduce, and write a table.",
    )
    treering("tune", "-n", str(RANKS), "--sizes", "8:16M", "--budget", options.budget, "--output", table, quiet=True)

    heading(
        3,
        "Show",
        "The table, for people: sizes, the algorithm that won there, and by how much over the MPI library's own.",
    )
    treering("show", table, "--plot", plot)

    heading(
        4,
        "Train",
        "A convolutional network on 1,797 handwritten digits, with PyTorch's DistributedDataParallel:\n"
        "over Gloo, and with one more line over treering. Same seeds, same batches, taking turns.",
    )
    arguments = ["--table", table, "--epochs", str(options.epochs), "--output", training]
    print(f"$ mpiexec -n {RANKS} python examples/digits_training.py {' '.join(arguments)}\n", flush=True)
    ranks = launch.command(RANKS, [str(ROOT / "examples" / "digits_training.py"), *arguments])
    run(ranks.command, ranks.environment)

    figures = json.loads((ROOT / training).read_text())
    gloo, ours = figures["gloo"]["step_ms"], figures["treering"]["step_ms"]
    heading(
        5,
        "What next",
        f"Your step took {ours:.2f} ms over treering and {gloo:.2f} ms over Gloo. "
        f"All of this took {time.monotonic() - start:.0f} s.\n"
        f"  {table:28} the tuning table; {plot} the plot; {training} these figures\n"
        f"  {'your own training':28} register(ddp_model, table=...) from integrations.torch_ddp\n"
        f"  {'why that algorithm?':28} treering explain -n {RANKS} --collective allreduce --bytes 1M --table {table}\n"
        f"  {'what does it look like?':28} treering draw ring --ranks 4\n"
        f"  {'is this machine well set up?':28} treering doctor -n {RANKS}\n"
        "  README.md has the rest.",
    )


if __name__ == "__main__":
    main()
