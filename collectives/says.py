"""What treering says of itself: a line on standard error."""

import sys


def say(line: str) -> None:
    sys.stderr.write(f"treering: {line}\n")
    sys.stderr.flush()
