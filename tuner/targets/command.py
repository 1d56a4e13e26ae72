"""What `treering tune --target` and `treering export` do."""

import argparse
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from collectives import __version__
from collectives.errors import CollectiveError, TableError
from collectives.selection import load
from collectives.tables.table import Table
from tuner.commands.common import UsageError
from tuner.contenders import native_lacks
from tuner.targets import TARGETS, Target
from tuner.targets.proof import Line, chosen_of, prove
from tuner.targets.relaunch import Fault, Request
from tuner.targets.sweep import Found, sweep, table_of
from tuner.targets.target import COLLECTIVES, intervals, ranks_of, tuned

LAUNCH_SECONDS = 0.6  # of measuring in each launch


def tune(args: argparse.Namespace, told: Callable[[float, str], None]) -> tuple[Table, Found]:
    """Sweep, and write the table; rules that the file has for other collectives stay."""
    if not args.ranks or args.hosts:
        raise UsageError("--target starts ranks again and again, on this machine: say how many with -n RANKS")
    if args.collective not in COLLECTIVES:
        raise UsageError(f"--target tunes {', '.join(COLLECTIVES)}, not {args.collective}")
    if lacking := native_lacks(args.dtype, args.op, args.collective):
        raise UsageError(f"--target: {lacking}; choose another --dtype or --op")
    target = TARGETS[args.target]
    target.check()
    request = Request(
        target, args.ranks, args.collective, args.dtype, args.op, tuple(args.sizes), LAUNCH_SECONDS
    )  # fmt: skip
    try:
        found = sweep(request, args.budget, args.seed, told)
    except Fault as fault:
        raise CollectiveError(f"{target.library} by itself does not run: {fault}") from None
    table = table_of(request, found, __version__, datetime.now(UTC).isoformat(timespec="seconds"))
    if args.output.exists():
        earlier = load(args.output)
        if earlier.target == table.target and earlier.topology.fingerprint == table.topology.fingerprint:
            table.rules += [rule for rule in earlier.rules if rule.collective != args.collective]
    table.save(args.output)
    return table, found


def target_of(table: Table, name: str) -> Target:
    """TableError where the table is another's."""
    if table.target != name:
        whose = table.target or "treering's own collectives"
        raise TableError(
            f"{table.origin} is for {whose}, not {name}; measure one for it: treering tune --target {name} -n "
            f"{ranks_of(table)}"
        )
    target = TARGETS[name]
    target.check()
    return target


def write(table: Table, name: str, output: Path) -> dict[str, Path]:
    """The library's files, named after `output` with the suffixes that they need: {suffix: file}."""
    files = {}
    for suffix, text in target_of(table, name).files(table).items():
        files[suffix] = output.parent / f"{output.name}{suffix}"
        try:
            files[suffix].write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--output: {files[suffix]}: {error.strerror}; name another file") from None
    return files


def proof(
    table: Table, files: Mapping[str, Path], sizes: tuple[int, ...], rounds: int, told: Callable[[float, str], None]
) -> list[Line]:
    """The library with the files beside the library without them, collective by collective."""
    assert table.target is not None
    target = TARGETS[table.target]
    lines = []
    for collective in tuned(table):
        rules = intervals(table, collective)
        dtype = "float32" if rules[0].dtype in ("any", "float") else "int32"
        op = "xor" if rules[0].op == "bitwise" else "sum"
        request = Request(target, ranks_of(table), collective, dtype, op, sizes, LAUNCH_SECONDS)
        environment = target.using({suffix: path.absolute() for suffix, path in files.items()})
        try:
            lines += prove(request, chosen_of(rules, sizes), environment, rounds, told)
        except Fault as fault:
            raise CollectiveError(
                f"{target.library} does not run with {', '.join(map(str, files.values()))}: {fault}"
            ) from None
    return lines
