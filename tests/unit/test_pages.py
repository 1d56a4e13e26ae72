"""The catalogue's pages are what the command makes; drawings are SVG that shows every message."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from collectives.algorithms import every, find
from collectives.nest import shape
from collectives.pages import pages
from collectives.proof.rendezvous import Meeting, programs
from collectives.svg import svg

FOLDER = Path(__file__).parents[2] / "docs" / "algorithms"


def test_the_pages_are_what_the_command_makes():
    """Else: python -m collectives.pages docs/algorithms"""
    made = pages()
    assert {path.name for path in FOLDER.iterdir()} == made.keys()
    assert [name for name, text in made.items() if (FOLDER / name).read_text(encoding="utf-8") != text] == []
    assert {f"{a.collective}-{a.name}.md" for a in every()} < made.keys()
    for name in (name for name in made if name.endswith(".md")):
        linked = re.findall(r"\]\(([^)]+)\)", made[name])
        assert all((FOLDER / link).exists() for link in linked), name


@pytest.mark.parametrize("name", ["ring", "hierarchical", "double_tree", "one_shot"])
def test_an_arrow_for_each_pair_that_meets_in_a_round(name):
    schedules = find("allreduce", name).schedules(6, nodes=shape("2x3"))
    drawn = ElementTree.fromstring(svg(schedules, "a < b"))
    arrows = [path for path in drawn.iter() if path.get("marker-end")]
    meeting = Meeting(programs(schedules, 1))
    assert list(meeting)
    pairs = {
        (max(m.out.turn.start, m.back.turn.start), m.out.turn.rank, m.back.turn.rank, m.back.step.kind)
        for m in meeting.messages
    }
    assert len(arrows) == len(pairs)
    texts = [text.text or "" for text in drawn.iter() if text.tag.endswith("text")]
    assert [f"rank {r}" for r in range(6)] == [text for text in texts if text.startswith("rank ")]
    assert "a < b" in texts
