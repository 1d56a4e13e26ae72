"""The command line: `treering COMMAND`. Exit status 0 for success, 2 for wrong use, 1 for failure."""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from collectives import __version__
from collectives.errors import CollectiveError
from collectives.says import LOG
from tuner.commands.common import UsageError, complain, is_first, leave

SAYING_SECONDS = 1.0  # that the first rank gets for its last words
COMMANDS = {
    "doctor": "say what this machine and this launch offer, what is wrong, and the mend",
    "tune": "measure this machine and write a tuning table",
    "show": "show a tuning table to a person",
    "lint": "check tuning tables before they are committed",
    "explain": "say which algorithm would run, and why",
    "bench": "time treering, the MPI library's own collective and Gloo, in one run",
    "simulate": "predict times for a topology that you do not have",
    "export": "turn a table for an MPI library's own collectives into that library's file of rules",
    "verify": "prove the schedules of the algorithms, without MPI",
    "draw": "draw an algorithm's schedule",
    "completion": "print what makes a shell complete commands, flags, files and algorithms",
}
FIRST = """
begin here:
  treering doctor -n 2                       is everything there, and does it fit together?
  treering tune -n 2                         measure this machine for a minute; writes treering-table.json
  treering show treering-table.json          which algorithm won at which size, and by how much
  export TREERING_TABLE=treering-table.json  what programs that use treering take from then on

`treering COMMAND --help` has a command's flags, and examples.
"""


class Help(argparse.HelpFormatter):
    """Keeps the lines of what begins with a line's end, as examples do."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text.strip("\n") if text.startswith("\n") else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as commands do, instead of after the whole usage."""

    def error(self, message: str) -> NoReturn:
        complain(self.prog.partition(" ")[2] or None, f"{message}; see {self.prog} --help")
        sys.exit(2)


def parser() -> argparse.ArgumentParser:
    """The whole command line; each command's module adds its flags, has examples, and says what runs it."""
    whole = Parser(
        prog="treering", description="Collective communication, tuned for your machine.", epilog=FIRST,
        formatter_class=Help,
    )  # fmt: skip
    whole.add_argument("--version", action="version", version=f"treering {__version__}")
    commands = whole.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in COMMANDS.items():
        module = import_module(f"tuner.commands.{name}")
        command = commands.add_parser(
            name, help=text, description=module.__doc__, epilog=f"\nexamples:{module.EXAMPLES}", formatter_class=Help
        )
        command.add_argument("-q", "--quiet", action="store_true", help="errors alone on standard error")
        module.add(command)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; gives its exit status. Without one it says what there is, and what to do first."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    whole = parser()
    args = whole.parse_args(given)
    if args.command is None:
        whole.print_help()
        return 0
    args.arguments = given
    if args.quiet:
        os.environ[LOG] = "error"  # for the ranks, too
    try:
        status: int = args.run(args)
    except UsageError as error:
        return fail(args.command, error, 2)
    except CollectiveError as error:
        return fail(args.command, error, 1)
    except KeyboardInterrupt:
        return fail(args.command, "interrupted", 1)
    except BrokenPipeError:  # whoever read our output has gone
        sys.stderr.close()
        return 1
    except Exception:
        if not among_others():
            raise
        return crash()
    return status


def fail(command: str, error: object, status: int) -> int:
    """Say what went wrong, once for all ranks; where others may be waiting for this one, end them too."""
    if is_first():
        complain(command, error)
    if among_others() and not all_fail():
        leave(status)
    return status


def crash() -> int:
    """Say where the exception at hand was raised: by the first rank, if it is among those that fail."""
    words = traceback.format_exc()
    if is_first():
        print(words, end="", file=sys.stderr, flush=True)
    if not all_fail():
        if not is_first():
            print(words, end="", file=sys.stderr, flush=True)
        leave(1)
    return 1


def all_fail() -> bool:
    """Whether every rank has come here, within a moment: all leave in order then, and the launcher has nothing to tell.

    The moment is also for the first rank's words, since a launcher ends all ranks when one ends.
    """
    from mpi4py import MPI

    until, others = time.monotonic() + SAYING_SECONDS, MPI.COMM_WORLD.Ibarrier()
    while not others.Test():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def among_others() -> bool:
    """Whether MPI runs and this is one rank of several."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.size > 1


if __name__ == "__main__":
    sys.exit(main())
