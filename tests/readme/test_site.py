"""The documentation's site is built without a warning: no link, name or page leads nowhere."""

from __future__ import annotations

import runpy
import subprocess
import sys

import pytest

from tests.launch import ROOT


@pytest.mark.full
def test_it_builds(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs", ".", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "docs" / "api.html").read_text()
    for name in ("Communicator.allreduce", "errors.PeerLost", "schedule.Span", "algorithms.register"):
        assert f'id="collectives.{name}"' in reference


def test_the_map_is_what_the_sources_say():
    assert (ROOT / "docs" / "map.md").read_text() == runpy.run_path(str(ROOT / "docs" / "map.py"))["written"]()


def test_a_table_is_shown_as_the_page_says(tmp_path, capsys):
    from tests.readme.blocks import blocks
    from tuner import cli

    path = tmp_path / "table.json"
    path.write_text(blocks("json", ROOT / "tuning_tables" / "README.md")[0].text)
    assert cli.main(["show", str(path)]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    (block,) = blocks("text", ROOT / "docs" / "reading-a-table.md")
    assert [line.split() for line in block.text.splitlines()] == shown[1:]
