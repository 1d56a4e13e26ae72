"""What treering says of itself: lines on standard error."""

import os
import sys

LOG = "TREERING_LOG"  # info: what a communicator found, too; error: nothing but what was asked for, and errors


def say(line: str) -> None:
    sys.stderr.write(f"treering: {line}\n")
    sys.stderr.flush()


def remark(line: str) -> None:
    """What is good to know, and hushed by TREERING_LOG=error (or `treering COMMAND --quiet`)."""
    if not quiet():
        say(line)


def quiet() -> bool:
    return os.environ.get(LOG, "").lower() == "error"
