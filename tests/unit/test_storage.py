"""What a tuning run keeps: a kill at any point loses no finished trial, two runs may share a storage, and samples."""

import json
import math
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from collectives.tables.table import Table, load
from tests.unit import test_search
from tests.unit.test_search import NODES, Machine, latency_then_bandwidth, tune
from tests.unit.tuning_table_mutants import everything
from tuner.measure import read_samples
from tuner.search import Study
from tuner.space import space
from tuner.storage import open_samples, storage_of

FORK = multiprocessing.get_context("fork")  # Optuna is loaded once
SIZES = [1024, 1 << 20]


def url_of(kind: str, folder: Path) -> str:
    return str(folder / "journal") if kind == "journal" else f"sqlite:///{folder}/trials.db"


def search(url: str, log: str, seed: int, trials: int) -> None:
    """A tuning run of its own; each trial that Optuna has finished is a line of the log."""
    finished = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    class Logged(Study):
        def tell(self, trial, value):
            super().tell(trial, value)
            if value is not None and math.isfinite(value):
                os.write(finished, f"{self.study.study_name} {trial.number}\n".encode())

    vars(test_search)["Study"] = Logged
    tune(Machine(latency_then_bandwidth, seed=seed), SIZES, budget=20.0, storage=storage_of(url), trials=trials)


def found(url: str, answer: str) -> None:
    """Writes the finished trials that a new run would find, by study and number."""
    storage = storage_of(url)
    studies = [Study(space("allreduce", NODES, nbytes), f"{nbytes}", storage, 0) for nbytes in SIZES]
    trials = [f"{study.study.study_name} {trial.number}" for study in studies for trial in study.study.trials
              if trial.state.name == "COMPLETE"]  # fmt: skip
    Path(answer).write_text(json.dumps([trials, sum(study.resumed for study in studies)]))


def run(function, *arguments):
    process = FORK.Process(target=function, args=arguments)
    process.start()
    return process


def finished(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def reopened(url: str, folder: Path) -> tuple[set[str], int]:
    process = run(found, url, str(folder / "answer"))
    process.join(60)
    assert process.exitcode == 0
    trials, resumed = json.loads((folder / "answer").read_text())
    return set(trials), resumed


@pytest.mark.parametrize("kind, kills", [("journal", 5), ("sqlite", 2)])
def test_no_finished_trial_is_lost_wherever_a_run_is_killed(tmp_path, kind, kills):
    url, log, rng = url_of(kind, tmp_path), tmp_path / "log", random.Random(5)
    for number in range(kills):
        before = len(finished(log))
        process = run(search, url, str(log), number, 30)
        deadline, more = time.monotonic() + 60, rng.randint(1, 3)
        while len(finished(log)) < before + more and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(rng.random() * 0.005)
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGKILL)
        process.join(60)
    trials, resumed = reopened(url, tmp_path)
    assert set(finished(log)) <= trials
    assert len(trials) >= 2
    assert 0 < resumed <= len(trials)


@pytest.mark.parametrize("kind, trials", [("journal", 30), ("sqlite", 6)])
def test_two_runs_share_a_storage(tmp_path, kind, trials):
    url, log = url_of(kind, tmp_path), tmp_path / "log"
    processes = [run(search, url, str(log), seed, trials) for seed in (1, 2)]
    for process in processes:
        process.join(90)
    assert [process.exitcode for process in processes] == [0, 0]
    lines = finished(log)
    assert len(lines) == len(set(lines))  # no trial was finished twice
    trials, _ = reopened(url, tmp_path)
    assert set(lines) == trials


def test_a_torn_line_and_a_lock_of_a_killed_writer_do_not_matter(tmp_path):
    path = tmp_path / "journal"
    study = Study(space("allreduce", NODES, 1024), "x", storage_of(str(path)), 0)
    trial, candidate = study.ask()
    study.tell(trial, 0.5)
    with path.open("ab") as file:
        file.write(b'{"op_code":6,"worker')
    (tmp_path / "journal.lock").touch()
    for value in (0.7, 0.8):
        again = Study(space("allreduce", NODES, 1024), "x", storage_of(str(path)), 0)
        assert candidate in again.known
        asked = again.ask_unknown([])
        assert asked is not None
        again.tell(asked[0], value)
    assert {0.5, 0.7, 0.8} <= set(Study(space("allreduce", NODES, 1024), "x", storage_of(str(path)), 0).known.values())
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_what_is_being_tried_is_not_taken_for_failed(tmp_path):
    """Whatever the sampler proposes twice in a batch, each candidate is told once, with its own figure."""
    study = Study(space("allreduce", NODES, 1024), "x", None, 0)
    while not study.exhausted:
        batch: list[Any] = []
        while len(batch) < 3 and (asked := study.ask_unknown([each for _, each in batch])):
            batch.append(asked)
        for trial, _ in batch:
            study.tell(trial, 0.5)
    assert set(study.known.values()) == {0.5}


@pytest.mark.parametrize("text", [b"no\n", b'{"schema": 1}\n', b"[1]\n", b"SQLite format 3\0", b"\n"])
def test_a_file_that_is_something_else_is_not_written_over(tmp_path, text):
    path = tmp_path / "file"
    path.write_bytes(text)
    with pytest.raises(ValueError, match="no journal of trials"):
        storage_of(str(path))
    assert path.read_bytes() == text


def test_a_study_of_other_candidates_is_refused(tmp_path):
    """As another version of treering may have left it under the same name."""
    url = str(tmp_path / "journal")
    study = Study(space("allreduce", NODES, 1024), "x", storage_of(url), 0)
    trial = study.study.ask()
    trial.suggest_categorical("algorithm", ["of", "tomorrow"])
    study.study.tell(trial, 1.0)
    with pytest.raises(ValueError, match="tomorrow"):
        Study(space("allreduce", NODES, 1024), "x", storage_of(url), 0)


def test_samples_are_numbered_on_and_torn_lines_go(tmp_path):
    path = tmp_path / "t.samples.jsonl"
    path.write_text('{"job": 3, "op": "sum"}\n{"job": 7, "op": "max"}\n{"job": 8, "o')
    file, last = open_samples(path, lambda line: line["op"] == "sum")
    with file:
        assert last == 7
        file.write('{"job": 8}\n')
    assert [line["job"] for line in read_samples(path)] == [7, 8]
    assert [name.name for name in tmp_path.iterdir()] == [path.name]
    fresh, last = open_samples(tmp_path / "u.jsonl", lambda _: False)
    fresh.close()
    assert last == 0


def save_for_ever(path: str) -> None:
    table = everything()
    while True:
        table.save(path)


def test_a_table_is_never_seen_half_written(tmp_path):
    path = tmp_path / "t.json"
    everything().save(path)
    for _ in range(5):
        process = run(save_for_ever, str(path))
        for _ in range(40):
            assert isinstance(load(path), Table)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join(60)
        assert load(path) == everything()
