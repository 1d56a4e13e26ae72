"""The map of the source, docs/map.md, from the first sentence of each module: python docs/map.py"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "collectives", "collectives/algorithms", "collectives/proof", "collectives/foresight", "collectives/native",
    "collectives/cuda", "collectives/ranks", "collectives/flight", "collectives/tables", "tuner", "tuner/commands",
    "tuner/targets", "integrations", "benchmarks",
)  # fmt: skip
HEAD = """# The map

Every module in a line, which is the first sentence of its docstring. [Architecture](architecture.md) says how they go
together. Written by `python docs/map.py`.
"""


def written() -> str:
    """The page."""
    return "\n".join([HEAD, *("\n".join(section(package)) for package in PACKAGES)])


def section(package: str) -> list[str]:
    files = sorted((ROOT / package).glob("*.py"), key=lambda path: path.stem)
    about = next(first_sentence(path) for path in files if path.stem == "__init__")
    lines = [f"## {package}", "", *([about, ""] if about else []), "| module | what it is |", "|---|---|"]
    return [*lines, *(f"| `{path.stem}` | {first_sentence(path)} |" for path in files if path.stem != "__init__"), ""]


def first_sentence(path: Path) -> str:
    """Of the module's docstring; what follows a colon and is a command is left out."""
    said = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    said = re.sub(r":? (python -m|python docs/).*", ".", said)
    sentence = re.split(r"(?<=[.!?]) (?=[A-Z`])", said)[0]
    return sentence.replace("|", "\\|").rstrip(":")


if __name__ == "__main__":
    (ROOT / "docs" / "map.md").write_text(written())
