"""CONTRIBUTING's algorithm, installed as its own distribution, is proved, listed and run like all others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib

import pytest

from tests.launch import ROOT
from tests.readme.blocks import blocks

PAGE = ROOT / "CONTRIBUTING.md"
USE = """
from array import array
import collectives
comm = collectives.Communicator()
x = array("i", [comm.rank + 1] * 1000)
comm.allreduce(x, algorithm="relay")
assert set(x) == {comm.size * (comm.size + 1) // 2}, set(x)
assert collectives.last_choice(comm).algorithm == "relay"
comm.close()
"""


@pytest.fixture
def installed(tmp_path):
    """The page's distribution as pip would leave it: a module, and metadata with its entry point."""
    project = tomllib.loads(blocks("toml", PAGE)[0].text)["project"]
    (group,) = project["entry-points"]
    ((key, module),) = project["entry-points"][group].items()
    (tmp_path / f"{module}.py").write_text(blocks("python", PAGE)[0].text)
    info = tmp_path / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{key} = {module}\n")
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}


def test_it_is_proved(installed):
    command = [sys.executable, "-m", "tuner.cli", "verify", "--ranks", "1-9", "--algorithms", "relay", "--json"]
    done = subprocess.run(command, env={**os.environ, **installed}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {row["ranks"] for row in rows} == set(range(1, 10))
    assert all(row["ok"] and row["algorithm"] == "relay" for row in rows)


@pytest.mark.full
def test_it_runs(installed, mpich):
    done = mpich.run(3, ["-c", USE], env=installed)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_takes_twenty_lines():
    text = blocks("python", PAGE)[0].text
    assert len([line for line in text.splitlines() if line.strip()]) <= 20
