"""What pages quote is what the committed results say."""

from __future__ import annotations

import pytest

from benchmarks import figures


@pytest.mark.parametrize("page", figures.PAGES)
def test_pages_quote_the_committed_results(page):
    text = (figures.ROOT / page).read_text()
    assert list(figures.stale(text)) == [], "python -m benchmarks.figures --write puts them right"


def test_every_figure_is_quoted_and_can_be_made_again():
    quoted = {match[2] for page in figures.PAGES for match in figures.MARK.finditer((figures.ROOT / page).read_text())}
    assert quoted == figures.FIGURES.keys()
    assert {result for result, _ in figures.FIGURES.values()} <= figures.commands().keys()


def test_a_figure_by_hand_is_seen():
    page = (figures.ROOT / "README.md").read_text()
    was = next(figures.MARK.finditer(page))[3]
    assert list(figures.stale(page.replace(was, was.replace("us", "ms", 1)))) == ["peers-2"]


def test_what_has_moved_is_what_differs_by_a_tenth():
    assert figures.moved("1.47 times, 1,200 at most", "1.44 times, 900 at most") == [("1,200", "900")]
