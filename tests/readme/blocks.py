"""Code blocks of the project's pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.launch import ROOT

PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *(ROOT / f"{top}/README.md" for top in ("tuning_tables", "benchmarks", "examples")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(language: str, *pages: Path) -> list[Block]:
    """The blocks in that language, in order."""
    found: list[Block] = []
    for page in pages or PAGES:
        text = page.read_text()
        found += [
            Block(page, language, text.count("\n", 0, match.start()) + 2, match[2])
            for match in FENCE.finditer(text)
            if match[1] == language
        ]
    return found


def commands(program: str) -> list[tuple[str, Block]]:
    """Lines of console blocks that start `program`, with the blocks that they are in."""
    return [
        (line.removeprefix("$ "), block)
        for block in blocks("console")
        for line in block.text.splitlines()
        if line.startswith(f"$ {program} ")
    ]
