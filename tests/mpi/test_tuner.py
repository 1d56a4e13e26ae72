"""The command line on real ranks: tuning, resuming, being stopped, benchmarks, and what goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from collectives.proof.canonical import canonical
from collectives.selection import load
from collectives.tables.table import Place, Rule, RunnerUp, Table
from tests import launch
from tuner.measure import read_samples

ROWS = [
    "collective", "bytes", "count", "dtype", "op", "ranks", "nodes", "contender", "algorithm", "params", "median_us",
    "low_us", "high_us", "algbw_GBps", "busbw_GBps", "wrong",
]  # fmt: skip


def command(name, *arguments):
    """What to run, and its environment, in which mpi4py refuses to pickle: ranks tell each other data."""
    library = launch.find(name)
    assert library is not None
    environment = library.environment({"MPI4PY_PICKLE_PROTOCOL": "99"})
    return [library.python, "-m", "tuner.cli", *map(str, arguments)], environment


def treering(name, *arguments, cwd, timeout=150, **env):
    """Run the command line as a person would; it starts the ranks itself."""
    program, environment = command(name, *arguments)
    return launch.run_command(program, {**environment, **env}, timeout=timeout, cwd=cwd)


def succeeded(done):
    assert done.returncode == 0, launch.describe(done.args, done.returncode, done.stdout, done.stderr)
    return done


def test_tune_writes_a_table_that_serves(mpi, tmp_path):
    arguments = ("-n", 2, "--sizes", "8:4K", "--budget", "5s", "--output", "t.json")
    done = succeeded(treering(mpi.name, "tune", *arguments, "--gloo", "--json", cwd=tmp_path))
    table = load(tmp_path / "t.json")
    assert json.loads(done.stdout) == json.loads((tmp_path / "t.json").read_text())
    assert "wrote t.json" in done.stderr
    assert table.topology.ranks_per_node == [2]
    assert {rule.key for rule in table.rules} == {
        ("allreduce", "float", "arithmetic", storage) for storage in ("ordinary", "symmetric")
    }
    assert any(rule.median_us and rule.native_us for rule in table.rules)
    lines = read_samples(tmp_path / (table.samples or ""))
    assert {line["stage"] for line in lines} >= {"screen", "race", "reference", "gloo"}
    assert {line["bytes"] for line in lines if line["algorithm"] == "gloo"} == {8 << n for n in range(10)}
    assert [each.key for each in table.tuned] == [("allreduce", "float", "arithmetic")]
    assert all(us > 0 for line in lines for us in line["us"])
    assert "native" in {line["algorithm"] for line in lines}
    by_job: dict[int, set[int]] = {}
    for line in lines:
        by_job.setdefault(line["job"], set()).add(len(line["us"]))
    assert all(len(lengths) == 1 for lengths in by_job.values())

    explained = ("--bytes", "1K", "--table", "t.json", "--json")
    here = json.loads(succeeded(treering(mpi.name, "explain", "-n", 2, *explained, cwd=tmp_path)).stdout)
    found = table.find("allreduce", 1024, "float32", "sum")
    assert found is not None
    assert (here["algorithm"], here["origin"]) == (found.algorithm, "table t.json")
    other = json.loads(succeeded(treering(mpi.name, "explain", "-n", 3, *explained, cwd=tmp_path)).stdout)
    assert other["basis"] == "near"
    assert "it is for 1 node of 2 ranks, and this is 1 node of 3 ranks" in other["reason"]


@pytest.mark.full
def test_what_is_asked_for_is_what_is_measured_and_told(mpich, tmp_path):
    asked = ("--dtype", "bfloat16", "--deterministic", "--precision", "accurate", "--objective", "p95")
    arguments = ("-n", 3, "--sizes", "64,4K", "--budget", "2s", "--output", "t.json", *asked)
    done = succeeded(treering(mpich.name, "tune", *arguments, cwd=tmp_path))
    table = load(tmp_path / "t.json")
    (tuned,) = table.tuned
    assert (tuned.dtype, tuned.deterministic, tuned.precision, tuned.objective) == ("half", True, "accurate", "p95")
    assert "a fixed order costs" in done.stderr
    assert "tuned in a fixed order" in done.stdout
    for rule in table.rules:
        assert canonical(rule.collective, rule.algorithm, rule.params, ((0, 1, 2),))


def start(name, *arguments, cwd):
    """The command line in a session of its own, left running."""
    program, environment = command(name, *arguments)
    with open(cwd / "out", "w") as out, open(cwd / "err", "w") as err:
        return subprocess.Popen(
            program, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )


def wait_until(true, process, seconds=90.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert process.poll() is None, f"ended early with {process.returncode}"
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def end(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def lines_of(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def test_a_run_that_was_killed_resumes_with_its_finished_trials(mpich, tmp_path):
    arguments = ["-n", 2, "--sizes", "8,1K", "--storage", "trials.journal", "--output", "t.json"]
    process = start(mpich.name, "tune", *arguments, "--budget", "300s", cwd=tmp_path)
    try:
        wait_until(lambda: lines_of(tmp_path / "t.samples.jsonl") >= 10, process)
    finally:
        end(process)
    assert not (tmp_path / "t.json").exists()
    done = succeeded(treering(mpich.name, "tune", *arguments, "--budget", "4s", cwd=tmp_path))
    resumed = [line for line in done.stderr.splitlines() if line.startswith("resumed ")]
    assert len(resumed) == 1
    assert int(resumed[0].split()[1]) >= 5
    assert load(tmp_path / "t.json").samples == "t.samples.jsonl"
    assert sorted(path.name for path in tmp_path.glob(".*tmp")) == []


def test_a_check_measures_a_tables_rules_anew_and_says_first_where_it_is_not_at_home(mpich, tmp_path):
    """It starts as many ranks as the table was measured on; a rule that cannot serve is a failure."""
    place = Place(nodes=1, ranks_per_node=[3], links=["shared-memory"], cpu="another", mpi="MPI", fingerprint="1x3")
    common: dict[str, Any] = {"collective": "allreduce", "dtype": "float", "op": "arithmetic"}
    second = RunnerUp(algorithm="two_shot", median_us=2.0)
    rules = [
        Rule(**common, min_bytes=0, max_bytes=999, algorithm="one_shot", measured_bytes=512, runner_up=second),
        Rule(**common, min_bytes=1000, max_bytes=None, algorithm="swing", measured_bytes=4096, median_us=1.0),
    ]
    Table(topology=place, rules=rules).save(tmp_path / "t.json")
    done = treering(mpich.name, "tune", "--check", "t.json", "--budget", "2s", "--json", cwd=tmp_path)
    answer = json.loads(done.stdout)
    assert answer["elsewhere"].startswith("it was measured with cpu another, and this is ")
    small, large = answer["rules"]
    assert (small["choice"], small["bytes"], small["fault"]) == ("one_shot", 512, "")
    assert small["now_us"][1] <= small["now_us"][0] <= small["now_us"][2]
    assert small["over"].keys() == {"runner-up"}
    assert "an even number of ranks, not 3" in large["fault"]
    assert done.returncode == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.json"]


def test_an_interrupt_finishes_the_table_from_what_there_is(mpich, tmp_path):
    process = start(mpich.name, "tune", "-n", 2, "--sizes", "8", "--budget", "300s", "--output", "t.json", cwd=tmp_path)
    samples = tmp_path / "t.samples.jsonl"
    try:
        wait_until(lambda: samples.exists() and '"stage": "race"' in samples.read_text(), process)
        process.send_signal(signal.SIGINT)
        status = process.wait(60)
    finally:
        end(process)
    assert status == 1
    assert "interrupted; the table holds what was measured before" in (tmp_path / "err").read_text()
    assert load(tmp_path / "t.json").rules[0].median_us is not None


def test_a_rank_that_raises_and_a_wrong_result_are_left_out_on_all_ranks(mpich):
    answer = json.loads(mpich(2, "tuner_fault").stdout)
    assert answer["ended"] is None
    assert answer["faults"]["raises"].startswith("rank 1: ArithmeticError: the last rank does not like this")
    assert "lazy" in answer["faults"]
    assert "recursive_doubling" in answer["raced"]
    assert not {"raises", "lazy"} & set(answer["raced"])


def test_bench_prints_rows_of_every_contender(mpi, tmp_path):
    arguments = ("--sizes", "8,64K", "--algorithms", "tuned", "--budget", "2s", "--json")
    done = succeeded(treering(mpi.name, "bench", "-n", 2, *arguments, cwd=tmp_path))
    answer = json.loads(done.stdout)
    assert sorted(answer) == ["context", "rows"]
    assert all(list(row) == ROWS for row in answer["rows"])
    pairs = sorted((row["bytes"], row["contender"]) for row in answer["rows"])
    assert pairs == [(n, name) for n in (8, 65536) for name in ("gloo", "native", "treering")]
    for row in answer["rows"]:
        assert row["wrong"] == 0
        assert row["low_us"] <= row["median_us"] <= row["high_us"]
        assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"], abs=2e-4)  # 2 (n - 1) / n is 1 for 2 ranks
        assert row["count"] * 4 == row["bytes"]


@pytest.mark.full
def test_every_algorithm_is_measured_on_right_results(mpich):
    answer = json.loads(mpich(3, "tuner_cases").stdout)
    assert answer["faults"] == []
    assert answer["wrong"] == []
    assert answer["measured"] >= 100


@pytest.mark.parametrize(
    "form, begins",
    [
        ("csv", "collective,bytes,count"),
        *(pytest.param(form, "# 1x2 ranks", marks=pytest.mark.full) for form in ("nccl", "osu")),
    ],
)
def test_ranks_that_mpirun_has_started_serve_as_they_are(mpich, form, begins):
    arguments = ["--sizes", "8", "--contenders", "treering,native", "--budget", "0.5s", "--format", form]
    done = succeeded(mpich.run(2, ["-m", "tuner.cli", "bench", *arguments]))
    assert done.stdout.startswith(begins)
    assert "treering" in done.stdout
    assert "native" in done.stdout


def test_doctor_finds_this_machine_well_and_tries_its_ranks(mpi, tmp_path):
    done = treering(mpi.name, "doctor", "-n", 2, "--json", cwd=tmp_path)
    answer = json.loads(done.stdout)
    checks = {check["name"]: check for check in answer["checks"]}
    assert all(sorted(check) == ["found", "mend", "name", "ok"] for check in answer["checks"])
    assert checks["allreduce"]["ok"]
    assert checks["MPI launcher"]["ok"]
    assert checks["ranks"]["found"].startswith("2 ranks")
    assert answer["ok"] == all(check["ok"] for check in answer["checks"])
    assert done.returncode == (0 if answer["ok"] else 1)


@pytest.mark.mpi
@pytest.mark.parametrize("launcher, library", [("openmpi", "mpich"), ("mpich", "openmpi")])
def test_a_foreign_mpiexec_is_named_with_the_mend(tmp_path, launcher, library):
    foreign, own = launch.find(launcher), launch.find(library)
    if foreign is None or own is None:
        pytest.skip(f"needs environments for {launcher} and {library}")
    flags = ["--oversubscribe"] if launcher == "openmpi" else []
    environment = {**foreign.environment(), "PATH": own.environment()["PATH"]}
    base = [foreign.mpiexec, *flags, "-n", "2", own.python, "-m", "tuner.cli"]
    done = launch.run_command([*base, "doctor", "--json"], environment, timeout=120, cwd=tmp_path)
    answer = json.loads(done.stdout)
    (wrong,) = [check for check in answer["checks"] if check["name"] == "launch"]
    assert not wrong["ok"]
    assert "2 processes were started" in wrong["found"]
    assert own.mpiexec in wrong["mend"]
    assert done.returncode != 0
    done = launch.run_command([*base, "bench", "--sizes", "8"], environment, timeout=120, cwd=tmp_path)
    assert done.returncode != 0
    assert done.stderr.count("which is not this launcher's library") == 1


FACTORIES = """
import torch
from mpi4py import MPI
def nothing(): return None
def crashing(): raise KeyError("in the factory")
def crashing_on_one():
    if MPI.COMM_WORLD.rank == 1: crashing()
    return torch.nn.Linear(4, 4), torch.ones(3, 4)
"""


@pytest.mark.full
@pytest.mark.parametrize("arguments, status, words", [
    (["--ddp", "nowhere:make"], 2, "--ddp nowhere:make: No module named 'nowhere'"),
    (["--ddp", "factories:nothing"], 2, "it must return (model, batch) or (model, loss)"),
    (["--ddp", "factories:crashing"], 1, "KeyError: 'in the factory'"),
    (["--ddp", "factories:crashing_on_one"], None, "KeyError: 'in the factory'"),
    (["--device", "cuda"], 1, "tune without --device cuda"),
], ids=lambda x: x[-1] if isinstance(x, list) else None)  # fmt: skip
def test_what_fails_on_ranks_that_are_started_is_said_once(mpich, tmp_path, arguments, status, words):
    """Where all ranks fail the launcher adds nothing, and the exit status is the command's."""
    if "cuda" in arguments and Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU here")
    (tmp_path / "factories.py").write_text(FACTORIES)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")]), str(launch.ROOT)])
    done = treering(mpich.name, "tune", "-n", 2, "--sizes", "1K", *arguments, cwd=tmp_path, PYTHONPATH=path)
    assert done.stderr.count(words) == 1, done.stderr
    if status is None:
        assert done.returncode
    else:
        assert done.returncode == status, done.stderr
        assert "YOUR APPLICATION TERMINATED" not in done.stdout + done.stderr
