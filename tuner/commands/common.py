"""What the commands share: their flags, wrong use, starting ranks, output."""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from collectives import dtypes
from collectives.errors import LaunchError
from collectives.ranks.mpi_peers import end_job
from collectives.says import quiet
from collectives.tables import table
from tuner import hosts, launch, units
from tuner.terminal import BAD, show

PICTURES = (".png", ".svg", ".pdf")


class UsageError(Exception):
    """Wrong use of a command; the message says what is wrong and how to mend it."""


def value(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A type for argparse that shows the parser's own message."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1 << 20:
        raise ValueError(f"{text!r} is not a number from 1 to {1 << 20}")
    return int(text)


def picture(text: str) -> Path:
    if Path(text).suffix not in PICTURES:
        raise ValueError(f"{text!r} is no picture's name; end it in {', '.join(PICTURES)}")
    return Path(text)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, and only JSON, on standard output")


def add_ranks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--ranks", type=value(positive), metavar="RANKS", help="start so many ranks with mpiexec")
    parser.add_argument("--hosts", metavar="H1:2,H2:2", help="start them on these hosts, so many on each")
    parser.add_argument("--hostfile", metavar="FILE", help="the same, a host a line: h1:2, or h1 slots=2")
    parser.add_argument("--agent", metavar="PROGRAM", help="reach hosts by it, called as ssh is (default: ssh)")


def add_call(parser: argparse.ArgumentParser) -> None:
    """What is measured or asked about."""
    one = "one of %(choices)s (default: %(default)s)"
    parser.add_argument("--collective", choices=table.COLLECTIVES, default="allreduce", metavar="NAME", help=one)
    parser.add_argument("--dtype", choices=dtypes.DTYPES, default="float32", metavar="DTYPE", help=one)
    parser.add_argument("--op", choices=dtypes.OPS, default="sum", metavar="OP", help=one)


def add_sizes(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--sizes", type=value(units.parse_sizes), default=default, metavar="SIZES",
        help="bytes of a message: 64K, 8:16M (doubling), 8:16M:4 (fourfold), lists of these (default: %(default)s)",
    )  # fmt: skip


def check_call(args: argparse.Namespace) -> None:
    """An operation that the dtype lacks, or a size of no whole elements: wrong use, said before ranks are started."""
    try:
        dtypes.check(args.dtype, args.op)
    except TypeError as error:
        raise UsageError(f"--op {args.op} --dtype {args.dtype}: {error}") from None
    item = dtypes.ITEMSIZE[args.dtype]
    for nbytes in getattr(args, "sizes", ()):
        if nbytes % item:
            raise UsageError(f"--sizes: {nbytes} bytes are no whole number of {args.dtype} ({item} bytes each)")


def ranks_needed(args: argparse.Namespace) -> int | None:
    """How many ranks the flags, or Slurm's allocation, ask for; UsageError where the flags contradict each other."""
    where = hosts_of(args)
    if where is None:
        return args.ranks or hosts.allocated_ranks(os.environ)
    if args.ranks and args.ranks != where.ranks:
        raise UsageError(
            f"-n {args.ranks} contradicts {'--hosts' if args.hosts else '--hostfile'} {args.hosts or args.hostfile}, "
            f"which has {where.ranks} ranks; leave one of them out"
        )
    return where.ranks


def hosts_of(args: argparse.Namespace) -> hosts.Hosts | None:
    """The hosts that the flags name. UsageError where they cannot be understood."""
    if args.hosts and args.hostfile:
        raise UsageError("--hosts and --hostfile: name hosts in one of them")
    if not args.hosts and not args.hostfile:
        if args.agent:
            raise UsageError("--agent reaches hosts: name some with --hosts or --hostfile")
        return None
    try:
        found = hosts.parse(args.hosts) if args.hosts else hosts.read(args.hostfile)
    except ValueError as error:
        raise UsageError(f"{'--hosts' if args.hosts else '--hostfile'}: {error}") from None
    return hosts.Hosts(found, args.agent and (shutil.which(args.agent) or args.agent))


def check_settings(table: str | None) -> None:
    """What the ranks' communicators would refuse, in the table or in TREERING_...: said before ranks are started."""
    from collectives.settings import Settings

    try:
        Settings.read(table, None, None)
    except ValueError as error:
        raise UsageError(str(error)) from None


def enter_ranks(args: argparse.Namespace, *, required: bool = True) -> Any:
    """The communicator of all ranks (mpi4py's), once there are some: starts them with -n, and then does not return.

    Under mpirun, srun or torchrun this is one of the ranks already. None where no ranks are asked for nor required.
    """
    wanted, said = ranks_needed(args), launch.announced()
    if said is None and launch.RANKS not in os.environ:
        if wanted:
            launch.execute(wanted, args.arguments, hosts_of(args))
        if not required:
            return None
        raise UsageError(f"`treering {args.command}` needs ranks: add -n RANKS, or start it under mpirun or srun")
    if wrong := launch.foreign_launcher():
        raise LaunchError(wrong)
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if wrong := launch.worlds_of_one(world.size):
        raise LaunchError(wrong)
    if wanted and wanted != world.size:
        raise UsageError(f"-n {wanted} within a launch of {world.size} ranks; leave -n out")
    return world.Dup()


def is_first() -> bool:
    """Whether this process speaks for all: the first of a launch, or the only one."""
    said = launch.announced()
    return said is None or said[2] == 0


def complain(command: str | None, text: object) -> None:
    show(f"treering{f' {command}' if command else ''}: ", ("error:", BAD), f" {text}", error=True)


def note(text: str) -> None:
    """What is good to know beside the result."""
    if not quiet():
        print(text, file=sys.stderr, flush=True)


def print_json(data: object) -> None:
    print(json.dumps(data, indent=1, allow_nan=False), flush=True)


def leave(status: int) -> NoReturn:
    """End this rank and with it the job: others may wait for it in a collective, where no exception reaches them."""
    sys.stdout.flush()
    sys.stderr.flush()
    from mpi4py import MPI

    end_job(MPI.COMM_WORLD, status)
    os._exit(status)
