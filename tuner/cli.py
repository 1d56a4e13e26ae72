"""The command line: `treering COMMAND`. Exit status 0 for success, 2 for wrong use, 1 for failure."""

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module

from collectives import __version__
from collectives.errors import CollectiveError
from tuner.commands.common import UsageError, complain, is_first, leave

SAYING_SECONDS = 1.0  # that the first rank gets for its last words
COMMANDS = {
    "tune": "measure this machine and write a tuning table",
    "bench": "time treering, the MPI library's own collective and Gloo, in one run",
    "show": "show a tuning table to a person",
    "lint": "check tuning tables before they are committed",
    "explain": "say which algorithm would run, and why",
    "export": "turn a table for an MPI library's own collectives into that library's file of rules",
    "verify": "prove the schedules of the algorithms, without MPI",
    "simulate": "predict times for a topology that you do not have",
    "draw": "draw an algorithm's schedule",
    "doctor": "say what this machine and this launch offer, what is wrong, and the mend",
}


def parser() -> argparse.ArgumentParser:
    """The whole command line; each command's module adds its flags and says what runs it."""
    whole = argparse.ArgumentParser(prog="treering", description="Collective communication, tuned for your machine.")
    whole.add_argument("--version", action="version", version=f"treering {__version__}")
    commands = whole.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        module = import_module(f"tuner.commands.{name}")
        module.add(commands.add_parser(name, help=text, description=module.__doc__))
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; gives its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    args = parser().parse_args(given)
    args.arguments = given
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
        if among_others():
            traceback.print_exc()
            leave(1)
        raise
    return status


def fail(command: str, error: object, status: int) -> int:
    """Say what went wrong, once for all ranks; where others may be waiting for this one, end them too."""
    if is_first():
        complain(command, error)
    else:  # a launcher ends all when one ends: the first may still have to say it
        time.sleep(SAYING_SECONDS)
    if among_others():
        leave(status)
    return status


def among_others() -> bool:
    """Whether MPI runs and this is one rank of several."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.size > 1


if __name__ == "__main__":
    sys.exit(main())
