"""Turn a table that `treering tune --target LIBRARY` wrote into that MPI library's own file of rules.

Programs that never heard of treering then run faster. --prove starts the library with the file and without it, in one
interleaved run, and says at each size whether the file was followed and what it gained.
"""

import argparse
import json
from pathlib import Path

import msgspec

from collectives.selection import load
from tuner import units
from tuner.commands.common import UsageError, add_json, add_sizes, note, positive, print_json, value
from tuner.progress import progress

FORMATS = ("openmpi", "openmpi-json", "mpich", "impi")
EXAMPLES = """
  treering tune --target openmpi -n 4 --output openmpi.json
  treering export openmpi.json --to openmpi
  treering export openmpi.json --to openmpi --prove --sizes 8:4M:8
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", help="a file that `treering tune --target LIBRARY` wrote")
    parser.add_argument("--to", choices=FORMATS, required=True, help="whose rules: one of %(choices)s")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the stem of what is written (default: TABLE's)")
    parser.add_argument("--prove", action="store_true", help="run the library with the file, and without it")
    parser.add_argument("--rounds", type=value(positive), default=10, metavar="N",
                        help="launches of each for the proof (default: %(default)s)")  # fmt: skip
    add_sizes(parser, "8:4M:4")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from tuner.targets import TARGETS, command, openmpi
    from tuner.targets.proof import OTHER

    table, stem = load(args.table), args.output or Path(args.table).with_suffix("")
    if not stem.parent.is_dir():
        raise UsageError(f"--output {stem}: its folder does not exist; name one that does")
    if args.to == "openmpi-json":
        if args.prove:
            raise UsageError("--prove needs a library that reads this: Open MPI 6.0; export --to openmpi for 5.0")
        path = stem.parent / f"{stem.name}.rules.json"
        command.target_of(table, "openmpi")
        path.write_text(json.dumps(openmpi.as_json(table), indent=1) + "\n", encoding="utf-8")
        note(f"wrote {path}; use it with: {openmpi.JSON_USE.format(path=path)}")
        return 0
    files = command.write(table, args.to, stem)
    environment = TARGETS[args.to].using(files)
    note(f"wrote {', '.join(map(str, files.values()))}; a program follows it with this environment:")
    if not args.json:
        print("".join(f"{name}={text}\n" for name, text in environment.items()), end="")
    if not args.prove:
        return 0
    with progress("proving") as told:
        lines = command.proof(table, files, tuple(args.sizes), args.rounds, told)
    if args.json:
        print_json([msgspec.to_builtins(line) for line in lines])
    else:
        for line in lines:
            ratio = f"{line.ratio.median:.3f} [{line.ratio.low:.3f}, {line.ratio.high:.3f}]"
            print(f"{line.collective} {units.size(line.bytes):>8}  {line.chosen!s:40} {line.effect:14} "
                  f"time with the file over without: {ratio}")  # fmt: skip
    return 1 if any(line.effect == OTHER for line in lines) else 0
