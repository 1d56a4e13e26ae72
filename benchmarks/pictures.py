"""The pictures of README.md, from a run of this repository's own: what `treering show` prints, and the crossovers.

    python -m benchmarks.pictures [-n 2] [--budget 45s]

tunes allreduce on this machine into build/pictures, and draws docs/pictures.
"""

import argparse
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

from collectives.tables.table import ORDINARY, load
from tuner.commands.show import show
from tuner.plot import crossover

ROOT = Path(__file__).resolve().parents[1]
BUILD, PICTURES = ROOT / "build" / "pictures", ROOT / "docs" / "pictures"
COLUMNS = 172
FONT_FACES = re.compile(r"@font-face \{.*?\}\n?", re.DOTALL)  # which name a web address: any monospaced font will do


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--budget", default="45s", help="how long to tune (default: %(default)s)")
    options = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    PICTURES.mkdir(exist_ok=True)
    path = BUILD / "table.json"
    command = [sys.executable, "-m", "tuner.cli", "tune", "-n", str(options.ranks), "--budget", options.budget]
    subprocess.run([*command, "--output", str(path)], cwd=ROOT, check=True)
    draw(path)


def draw(path: Path) -> None:
    """The pictures of a table with its samples beside it."""
    table = load(path)
    crossover(table, path, PICTURES / "crossover.png")
    table = replace(table, rules=[rule for rule in table.rules if rule.storage == ORDINARY])
    console = Console(record=True, width=COLUMNS, highlight=False, force_terminal=True, file=StringIO())
    console.print("$ treering show table.json")
    show(table, console)
    drawn = console.export_svg(title="treering show", unique_id="treering")
    (PICTURES / "show.svg").write_text(FONT_FACES.sub("", drawn), encoding="utf-8")


if __name__ == "__main__":
    main()
