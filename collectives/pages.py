"""The catalogue, docs/algorithms/, from docstrings, proofs and drawings: python -m collectives.pages docs/algorithms"""

import sys
from inspect import cleandoc, getdoc
from pathlib import Path
from typing import Any

from collectives.algorithms import Algorithm, every
from collectives.contract import COLLECTIVES, contract
from collectives.nest import shape
from collectives.svg import svg
from collectives.verify import verify

COUNTED = (4, 8, 13, 16, 64)  # ranks
DRAWN = (8, 6, 4)  # ranks, the first of these at which no round has more messages than
CROWD = 16
NODES = {8: "2x4", 6: "2x3", 4: "2x2", 13: "6+4+3", 16: "4x4", 64: "8x8"}
NESTS = NODES | {8: "2x2x2", 13: "(3+2)+(2+1)+(3+2)", 16: "2x2x4", 64: "4x4x4"}  # for those that take groups of groups
WRITTEN = "Written by `python -m collectives.pages docs/algorithms` from docstrings, proofs and schedules."


def pages() -> dict[str, str]:
    """{name of a file: what is in it}, for all algorithms of treering's own."""
    ours = [a for a in every() if a.emit.__module__.startswith("collectives.")]
    made = {"README.md": index(ours)}
    for a in ours:
        made[f"{label(a)}.md"] = page(a)
        made[f"{label(a)}.svg"] = picture(a)
    return made


def label(a: Algorithm) -> str:
    return f"{a.collective}-{a.name}"


def nodes(a: Algorithm, p: int) -> Any:
    return shape((NESTS if a.nested else NODES)[p])


def index(ours: list[Algorithm]) -> str:
    lines = [
        "# Algorithms",
        "",
        f"Every algorithm of treering, a page each. {WRITTEN}",
        "",
        "alpha is the cost of a message, beta that of its length n, gamma that of folding n, for p ranks.",
        "Rounds, and lengths of the message that the busiest rank sends, are counted at 8 ranks, on two nodes of four;",
        "those of what takes groups of groups on two racks of two nodes of two.",
    ]
    for collective in COLLECTIVES:
        lines += ["", f"## {collective}", "", "| algorithm | rounds | sends | cost |", "|---|---|---|---|"]
        for a in (a for a in ours if a.collective == collective):
            rounds, sent, _ = counted(a, 8) or ("-", "-", "-")
            lines.append(f"| [{a.name}]({label(a)}.md) | {rounds} | {sent} | {a.cost} |")
    return "\n".join(lines) + "\n"


def page(a: Algorithm) -> str:
    module = sys.modules[a.emit.__module__]
    idea, _, rest = a.doc.partition("\nCost: ")
    serves, _, paper = rest.partition("\nServes: ")[2].partition("\nPaper: ")
    lines = [
        f"# {a.collective}: {a.name}",
        "",
        *idea.strip().splitlines(),
        "",
        f"![{a.name}]({label(a)}.svg)",
        "",
        f"- Cost: {a.cost}",
        f"- Serves: {flat(serves)}",
        f"- Paper: {flat(paper)}",
        f"- Source: [{a.emit.__module__}](../../{a.emit.__module__.replace('.', '/')}.py), `{a.emit.__name__}`",
        *(f"- Parameter `{p.name}` (default {p.default}): {p.doc}" for p in a.parameters),
        "",
        "Counted by the verifier; lengths are those of the message, at the rank that has most:",
        "",
        "| ranks | rounds | sends | folds |",
        "|---|---|---|---|",
        *(
            "| " + " | ".join([str(p), *(counted(a, p) or [a.lack(p, nodes(a, p)) or "", "", ""])]) + " |"
            for p in COUNTED
        ),
        "",
        "## The family",
        "",
        "```text",
        *cleandoc(getdoc(module) or "").splitlines(),
        "```",
        "",
        WRITTEN,
    ]
    return "\n".join(lines) + "\n"


def counted(a: Algorithm, p: int) -> tuple[str, str, str] | None:
    """Rounds, and what is sent and folded; None where it does not serve so many ranks."""
    if a.lack(p, nodes(a, p)):
        return None
    r = verify(a.schedules(p, nodes=nodes(a, p)), contract(a.collective, p))
    return str(r.rounds), f"{float(r.sent):.4g}", f"{float(r.folded):.4g}"


def picture(a: Algorithm) -> str:
    for p in DRAWN:
        drawn = svg(a.schedules(p, nodes=nodes(a, p)), f"{a.collective} {a.name}, {p} ranks")
        rounds = drawn.count(">round ")
        if drawn.count("marker-end") <= CROWD * max(1, rounds):
            break
    return drawn


def flat(text: str) -> str:
    return " ".join(text.split())


def write(folder: Path) -> None:
    """The pages, and nothing else, in the folder."""
    made = pages()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.name not in made:
            old.unlink()
    for file, text in made.items():
        (folder / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
