"""A progress bar on standard error; where that is no terminal, a line now and then; nothing with --quiet."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from collectives.says import quiet
from tuner.launch import PROGRESS

EVERY = 5.0  # seconds between lines
Told = Callable[[float, str], None]


@contextmanager
def progress(title: str) -> Iterator[Told]:
    """Gives a function to be told what fraction is done, and what is being done."""
    if quiet():
        yield lambda _, __: None
        return
    if not (sys.stderr.isatty() or os.environ.get(PROGRESS)):
        yield Lines(title)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f}%"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True, force_terminal=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda done, text: bar.update(task, completed=done, description=f"{title}: {text}")


class Lines:
    def __init__(self, title: str):
        self.title, self.last = title, monotonic()

    def __call__(self, done: float, text: str) -> None:
        if monotonic() - self.last >= EVERY:
            self.last = monotonic()
            print(f"{self.title}: {done:4.0%} {text}", file=sys.stderr, flush=True)
