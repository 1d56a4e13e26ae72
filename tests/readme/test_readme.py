"""What the pages show works as shown: code runs on two ranks, commands parse, targets and links exist."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.launch import ROOT
from tests.readme.blocks import PAGES, blocks, commands
from tuner import cli

README = ROOT / "README.md"
CODE = blocks("python", README, *(ROOT / "docs" / "tutorials" / f"{who}.md" for who in ("pytorch", "researcher")))
LINK = re.compile(r"\[[^\]]*\]\(([^)#:]+)(?:#[^)]*)?\)")


def test_there_is_a_block_for_every_door():
    text = "".join(block.text for block in CODE)
    assert len(CODE) >= 4
    for name in ("Communicator()", "comm.plan(", "Communicator(table=", "torch_ddp import register"):
        assert name in text


@pytest.mark.parametrize("block", CODE, ids=str)
def test_code_runs_on_two_ranks(block, mpich, tmp_path):
    program = tmp_path / "block.py"
    program.write_text(block.text)
    done = mpich.run(2, [str(program)], cwd=tmp_path)
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("line", [pytest.param(line, id=f"{block} {line}") for line, block in commands("treering")])
def test_commands_parse(line):
    words = shlex.split(line, comments=True)
    assert cli.parser().parse_args(words[1:]).command == words[1]


def test_commands_are_named():
    text = README.read_text()
    assert {name for name in cli.COMMANDS if f"treering {name}" not in text} == set()


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = {line.split(":")[0] for line in makefile.splitlines() if re.match(r"[a-z-]+:", line)}
    named = {word for page in PAGES for word in re.findall(r"`make ([a-z-]+)`", page.read_text())}
    named |= {shlex.split(line, comments=True)[1] for line, _ in commands("make")}
    assert {"demo", "test"} <= named
    assert named <= targets | {"mpich", "openmpi", "impi"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    broken = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page):
    named = set(re.findall(r"`([\w./]+\.py)`", page.read_text()))
    folders = (ROOT, ROOT / "collectives", ROOT / "collectives" / "algorithms", page.parent)
    missing = {name for name in named if not any((folder / name).exists() for folder in folders)}
    assert missing <= {"__init__.py", "program.py", "tests/programs/NAME.py"}
