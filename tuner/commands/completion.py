"""Print what makes a shell complete commands, flags, files and algorithms."""

import argparse
from collections.abc import Iterator
from typing import Any

from tuner.commands.common import UsageError

SHELLS = ("bash", "zsh", "fish", "tcsh")
EXAMPLES = """
  treering completion bash > ~/.local/share/bash-completion/completions/treering
  treering completion zsh > ~/.zfunc/_treering        # a folder of fpath, named before compinit
  treering completion fish > ~/.config/fish/completions/treering.fish
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="one of %(choices)s")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        raise UsageError(f"completion needs shtab ({error}); pip install shtab") from None
    from collectives.algorithms import every
    from tuner.cli import parser

    whole, names = parser(), sorted({algorithm.name for algorithm in every()})
    for action in actions(whole):
        if action.metavar in ("FILE", "TABLE"):
            action.complete = shtab.FILE
        elif action.metavar in ("ALGORITHM", "A,B") and "--contenders" not in action.option_strings:
            action.complete = shtab.cmd(f"echo {' '.join(names)}")
    print(shtab.complete(whole, args.shell))
    return 0


def actions(parser: argparse.ArgumentParser) -> Iterator[Any]:
    """Of a parser and of its commands' parsers; shtab reads an attribute of theirs that argparse does not know."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from actions(command)
