"""Words and tables with colour, where Rich finds a terminal on which NO_COLOR is not set and TERM is not dumb."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

GOOD, BAD, STRONG = "green", "bold red", "bold"
WIDE = 200  # columns where no terminal limits them
# Columns of the terminal that standard output is, 0 where it is none: for ranks, which write to their launcher, and see
# no terminal where there is one, or, on Open MPI, one where there is none.
TERMINAL = "TREERING_TERMINAL"


def console() -> "Console":
    """For standard output, as wide as its terminal."""
    from rich.console import Console

    told = os.environ.get(TERMINAL, "")
    if told.isdecimal():
        return Console(width=int(told) or WIDE, force_terminal=int(told) > 0, highlight=False)
    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)


def show(*parts: str | tuple[str, str], error: bool = False) -> None:
    """Print a line: words, and (words, style)."""
    from rich.console import Console
    from rich.text import Text

    to = Console(stderr=True, highlight=False) if error else console()
    to.print(Text.assemble(*parts), soft_wrap=True)
