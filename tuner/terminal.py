"""Lines with colour, where Rich finds a terminal on which NO_COLOR is not set and TERM is not dumb."""

GOOD, BAD, STRONG = "green", "bold red", "bold"


def show(*parts: str | tuple[str, str], error: bool = False) -> None:
    """Print a line: words, and (words, style)."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=error, highlight=False, soft_wrap=True).print(Text.assemble(*parts))
