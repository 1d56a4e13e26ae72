"""The command line: wrong use says what to do instead, with exit status 2; output is what was asked for."""

import json
import os
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest

from collectives.errors import LaunchError
from collectives.tables.table import Place, Rule, RunnerUp, Table
from tests.launch import INHERITED, ROOT
from tuner import cli, launch, terminal
from tuner.hosts import Hosts, parse


@pytest.fixture(autouse=True)
def _no_launch(monkeypatch):
    """No test of this file starts ranks, and none is one."""
    for name in [name for name in os.environ if name.startswith(INHERITED)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(launch, "execute", lambda *_: pytest.fail("ranks would have been started"))


def run(capsys, *arguments):
    """Exit status, standard output, standard error."""
    status: int | str | None
    try:
        status = cli.main(list(arguments))
    except SystemExit as leaving:
        status = leaving.code
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def table(tmp_path):
    timed: dict[str, Any] = {"measured_bytes": 4096, "median_us": 2.0, "low_us": 1.9, "high_us": 2.2, "native_us": 5.0}
    second = RunnerUp(algorithm="two_shot", params={}, median_us=2.5)
    common: dict[str, Any] = {"collective": "allreduce", "dtype": "float", "op": "arithmetic"}
    rules = [
        Rule(**common, min_bytes=0, max_bytes=5792, algorithm="one_shot", runner_up=second, **timed),
        Rule(**common, min_bytes=5793, max_bytes=None, algorithm="ring", params={"segment_bytes": 65536, "slots": 2}),
        Rule(**common, storage="symmetric", min_bytes=0, max_bytes=None, algorithm="one_pass"),
    ]
    place = Place(nodes=1, ranks_per_node=[2], links=["shared-memory"], cpu="C", mpi="M", fingerprint="1x2")
    path = tmp_path / "table.json"
    Table(treering="0.1.0", created="2026-01-01", topology=place, samples="s.jsonl", rules=rules).save(path)
    return path


# Wrong use


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["tun"], "invalid choice: 'tun'"),
        (["tune", "--sizes", "8:"], "'8:' is not a size or a range; write 64K, 8:16M"),
        (["tune", "--sizes", "16M:8"], "'16M:8' runs backwards; write the smaller size first, 8:16M"),
        (["tune", "--sizes", "8x"], "'8x' is not a size"),
        (["tune", "--sizes", "10", "-n", "2"], "10 bytes are no whole number of float32"),
        (["tune", "--interval", "none"], "'none' is not a percentage above 0; write 1% or 0.5%"),
        (["tune", "--budget", "soon"], "'soon' is not a duration; write 60s, 2m or 1h"),
        (["tune", "-n", "0"], "'0' is not a number from 1"),
        (["tune", "-n", "two"], "'two' is not a number"),
        (["tune", "--dtype", "float33"], "invalid choice: 'float33'"),
        (["tune", "--op", "mean"], "invalid choice: 'mean'"),
        (["tune", "--op", "xor", "-n", "2"], "op 'xor' is not for float32"),
        (["tune", "--op", "avg", "--dtype", "int32", "-n", "2"], "op 'avg' is not for int32"),
        (["tune", "--collective", "allsum"], "invalid choice: 'allsum'"),
        (["tune"], "needs ranks: add -n RANKS, or start it under mpirun"),
        (["tune", "-n", "2", "--output", "/absent/t.json"], "not a file that can be written"),
        (["tune", "-n", "2", "--output", "/proc/t.json"], "not a file that can be written ("),
        (["tune", "-n", "2", "--output", "/"], "not a file that can be written (it is a directory)"),
        (["tune", "-n", "2", "--storage", "/absent/journal"], "not a file that can be written"),
        (["tune", "-n", "2", "--output", "t.json", "--storage", "./t.json"], "is where the table or its samples go"),
        (["tune", "-n", "2", "--allow-native", "--deterministic"], "contradicts --deterministic"),
        (["tune", "-n", "2", "--precision", "accurate"], "float32 is never summed in less: leave it out"),
        (["tune", "-n", "2", "--ddp", "a:b", "--objective", "p95"], "--objective is not for --ddp"),
        (["tune", "-n", "3", "--hosts", "a:1,b:1"], "contradicts --hosts a:1,b:1, which has 2 ranks"),
        (["tune", "--hosts", "a:x"], "'a:x' is not HOST or HOST:RANKS"),
        (["tune", "-n", "2", "--ddp", "train"], "--ddp train: write MODULE:FACTORY, as in train:make_model"),
        (["bench"], "needs ranks"),
        (["bench", "-n", "2", "--algorithms", "rign"], "allreduce has no algorithm called 'rign'; it has: ring"),
        (["bench", "-n", "2", "--algorithms", "ring:slots=0"], "slots=0 is not allowed"),
        (["bench", "-n", "2", "--contenders", "nccl"], "'nccl' is none; there are treering, native, gloo"),
        (["bench", "-n", "2", "--contenders", "gloo", "--op", "avg"], "nobody is left to time"),
        (["bench", "-n", "2", "--json", "--format", "csv"], "--json contradicts --format csv"),
        (["explain"], "needs ranks"),
        (["explain", "--bytes", "much"], "'much' is not a size"),
        (["verify", "--ranks", "0"], "'0' is not a number of ranks"),
        (["verify", "--ranks", "9-3"], "'9-3' is not a number of ranks or a range"),
        (["verify", "--nodes", "2*3"], "is no shape of nodes: write 2x3"),
        (["verify", "--algorithms", "rign"], "no algorithm is called rign; there are"),
        (["verify", "--algorithms", ""], "no algorithm is called ; there are ring"),
        (["verify", "--collective", "reduce", "--algorithms", "ring"], "no algorithm is called ring; there are"),
        (["verify", "--mutants", "9", "--algorithms", "ring"], "--algorithms is not for --mutants"),
        (["draw", "ring", "--output", "/absent/a.svg"], "No such file or directory; name a file that can be written"),
        (["draw", "rign"], "'rign' is not an algorithm; there are"),
        (["draw", "ring:slotz=2"], "has no parameter 'slotz'; it has: segment_bytes, slots"),
        (["draw", "ring", "--ranks", "3", "--nodes", "2x2"], "--ranks 3 contradicts --nodes"),
        (["draw", "ring", "--ranks", "1000"], "a drawing of 1000 ranks is not readable; draw at most 256"),
        (["simulate", "--network", "/absent"], "/absent: not a file; name a network's, a JSON file"),
        (["simulate", "--network", "/dev/null"], "/dev/null: not a file"),
        (["simulate", "--plot", "folder"], "'folder' is no picture's name; end it in .png, .svg, .pdf"),
        (["show", "t.json", "--plot", "a.nothing"], "'a.nothing' is no picture's name"),
        (["export", "t.json"], "required: --to"),
        (["lint"], "which tables? name files or folders"),
        (["doctor", "--hostfile", "/absent"], "--hostfile: /absent: No such file or directory"),
        (["doctor", "--agent", "ssh"], "--agent reaches hosts: name some with --hosts or --hostfile"),
        (["completion", "ksh"], "invalid choice: 'ksh'"),
        (["show"], "required: TABLE; see treering show --help"),
    ],
)
def test_wrong_use_says_what_to_do_and_exits_with_2(capsys, arguments, said):
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert said in " ".join(err.split())
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "command, name, text, said",
    [
        ("tune", "TREERING_TIMEOUT", "soon", "TREERING_TIMEOUT is 'soon'; it is a number of seconds"),
        (
            "bench",
            "TREERING_ALGORITHM",
            "allreduce=rign",
            "TREERING_ALGORITHM: allreduce has no algorithm called 'rign'",
        ),
        ("explain", "TREERING_ALGORITHM", "ring:slots=many", "TREERING_ALGORITHM: allreduce ring: slots='many' is"),
    ],
)
def test_what_ranks_would_refuse_is_said_before_they_start(capsys, monkeypatch, command, name, text, said):
    monkeypatch.setenv(name, text)
    status, out, err = run(capsys, command, "-n", "2")
    assert (status, out) == (2, "")
    assert said in err


def test_a_table_that_does_not_parse_is_a_failure_that_names_file_and_place(capsys, tmp_path, table):
    broken = tmp_path / "broken.json"
    broken.write_bytes(table.read_bytes()[:-30])
    for arguments in (["show", str(broken)], ["explain", "--table", str(broken)], ["bench", "--table", str(broken)]):
        status, out, err = run(capsys, *arguments)
        assert (status, out) == (1, "")
        assert str(broken) in err
        assert "line" in err


# Help


def test_alone_it_says_what_to_do_first(capsys):
    status, out, err = run(capsys)
    assert (status, err) == (0, "")
    assert re.search(r"begin here:\n +treering doctor -n 2 .*\n +treering tune -n 2", out)
    assert all(re.search(rf"^    {name}\b", out, re.MULTILINE) for name in cli.COMMANDS)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_examples_that_parse(capsys, command):
    status, out, _ = run(capsys, command, "--help")
    assert status == 0
    lines = [
        line for line in out.partition("\nexamples:\n")[2].splitlines() if line.startswith(f"  treering {command}")
    ]
    assert lines
    for line in lines:
        words = shlex.split(line.partition(" > ")[0], comments=True)
        assert cli.parser().parse_args(words[1:]).command == command


def test_a_shell_completes_commands_files_and_algorithms(capsys, tmp_path):
    status, script, _ = run(capsys, "completion", "bash")
    assert status == 0
    (tmp_path / "table.json").touch()
    (tmp_path / "completion").write_text(script)

    def completed(*words):
        program = (
            f"source completion; COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; "
            '_shtab_treering; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        return done.stdout.split()

    assert completed("treering", "si") == ["simulate"]
    assert "--sizes" in completed("treering", "tune", "--s")
    assert completed("treering", "tune", "--dtype", "bf") == ["bfloat16"]
    assert completed("treering", "show", "ta") == ["table.json"]
    assert completed("treering", "draw", "halv") == ["halving_doubling"]


def test_colours_are_for_terminals_that_want_them(monkeypatch, capsys):
    for variables, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        with monkeypatch.context() as patched:
            for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
                patched.delenv(name, raising=False)
            patched.setenv("TERM", "xterm")
            for name, text in variables.items():
                patched.setenv(name, text)
            patched.setattr(sys.stdout, "isatty", lambda: True)
            terminal.show(("ok", terminal.GOOD))
            assert ("\x1b[32m" in capsys.readouterr().out) == coloured
    terminal.show(("ok", terminal.GOOD))
    assert capsys.readouterr().out == "ok\n"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for columns, width, coloured in (("90", 90, True), ("0", terminal.WIDE, False)):  # as ranks are told
        monkeypatch.setenv(terminal.TERMINAL, columns)
        assert terminal.console().width == width
        terminal.show(("ok", terminal.GOOD))
        assert ("\x1b[32m" in capsys.readouterr().out) == coloured


def test_quiet_leaves_errors_alone_on_standard_error(monkeypatch, capsys):
    monkeypatch.setenv("TREERING_LOG", "info")  # which --quiet overrules, here and for ranks
    arguments = ["simulate", "--nodes", "1", "--ranks-per-node", "2", "--sizes", "1K", "--algorithms", "ring"]
    assert "typical costs" in run(capsys, *arguments)[2]
    status, out, err = run(capsys, *arguments, "--quiet")
    assert (status, err) == (0, "")
    assert "1 KiB" in out
    assert "is not an algorithm" in run(capsys, "draw", "rign", "-q")[2]


# Output


def test_show_prints_each_rule_with_a_bar(capsys, table):
    status, out, _ = run(capsys, "show", str(table))
    assert status == 0
    assert re.search(  # bytes, algorithm, at, median, interval, native, speed-up, runner-up
        r"0 B \.\. 5792 B +one_shot +4 KiB +2 us +1\.9 us to 2\.2 us +5 us +2\.50x █+ +two_shot \+25%", out
    )
    assert re.search(r"5793 B \.\. +ring:segment_bytes=65536,slots=2", out)


def test_show_as_json_is_the_table(capsys, table):
    status, out, err = run(capsys, "show", str(table), "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == json.loads(table.read_text())


def test_a_plot_without_its_samples_or_to_nowhere_says_so(capsys, table, tmp_path):
    status, _, err = run(capsys, "show", str(table), "--plot", str(tmp_path / "a.png"))
    assert status == 2
    assert "s.jsonl cannot be read: No such file" in err
    line = {"job": 1, "stage": "race", "collective": "allreduce", "dtype": "float32", "op": "sum", "bytes": 8,
            "algorithm": "ring", "params": {}, "us": [1.0, 2.0, 3.0]}  # fmt: skip
    lines = [line, {**line, "algorithm": "one_shot"}, {**line, "bytes": 16, "us": [2.0]}]
    lines += [{**each, "stage": "gloo", "algorithm": "gloo", "job": 2} for each in (line, {**line, "bytes": 32})]
    (tmp_path / "s.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines) + "{torn")
    for name, status in (("a.png", 0), ("a.svg", 0), ("absent/a.png", 2), ("a.nothing", 2)):
        assert run(capsys, "show", str(table), "--plot", str(tmp_path / name))[0] == status
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_explain_without_ranks_speaks_for_the_tables_topology(capsys, table, monkeypatch):
    status, out, _ = run(capsys, "explain", "--table", str(table), "--bytes", "4K", "--json")
    answer = json.loads(out)
    assert status == 0
    assert list(answer) == [
        "algorithm",
        "params",
        "rule",
        "runner_up",
        "margin",
        "margin_bounds",
        "origin",
        "basis",
        "reason",
    ]
    assert (answer["algorithm"], answer["origin"]) == ("one_shot", f"table {table}")
    assert answer["margin"] == pytest.approx(0.25)
    assert answer["rule"]["max_bytes"] == 5792
    _, out, _ = run(capsys, "explain", "--table", str(table), "--bytes", "4K", "--storage", "symmetric")
    assert "allreduce of 4 KiB float32 sum, symmetric memory:\n  one_pass" in out
    monkeypatch.setenv("TREERING_TABLE", str(table))
    _, out, _ = run(capsys, "explain", "--bytes", "1M", "--dtype", "int8")
    assert "has no rule for allreduce of int8 with sum" in out
    monkeypatch.setenv("TREERING_ALGORITHM", "allreduce=two_shot:slots=2")
    assert json.loads(run(capsys, "explain", "--json")[1])["origin"] == "environment"
    monkeypatch.setenv("TREERING_ALGORITHM", "allreduce=two_shot:slots")
    status, _, err = run(capsys, "explain")
    assert status == 2
    assert "TREERING_ALGORITHM: 'slots'" in err


def test_verify_gives_a_row_for_each_proof(capsys):
    status, out, err = run(capsys, "verify", "--ranks", "1-3", "--nodes", "2x2", "--collective", "allreduce", "--json")
    answer = json.loads(out)
    assert (status, err, answer["ok"]) == (0, "", True)
    keys = ["collective", "algorithm", "ranks", "nodes", "ok", "rounds", "bytes_sent", "order"]
    assert all(list(row)[:8] == keys for row in answer["rows"])
    ring = next(row for row in answer["rows"] if row["algorithm"] == "ring" and row["ranks"] == 3)
    assert ring["rounds"] == 4
    assert ring["bytes_sent"] == pytest.approx(4 / 3)
    assert {row["order"] == "fixed" for row in answer["rows"] if row["algorithm"] == "one_shot"} == {True}
    assert {row["nodes"] for row in answer["rows"] if row["algorithm"].startswith("hierarchical")} >= {"2x2"}


def test_draw_names_every_rank(capsys):
    status, out, _ = run(capsys, "draw", "ring", "--collective", "allreduce", "--ranks", "3")
    assert status == 0
    assert len(out.splitlines()) > 3


def test_startup_loads_nothing_heavy():
    heavy = ("torch", "optuna", "numba", "numpy", "matplotlib", "rich", "mpi4py")
    code = f"import sys; from tuner import cli; cli.parser(); print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


# Launching


def test_a_command_that_needs_ranks_starts_them_with_its_own_arguments(monkeypatch):
    started = []

    def execute(*given):
        started.append(given)
        raise SystemExit(0)

    monkeypatch.setattr(launch, "execute", execute)
    for arguments in (["bench", "-n", "2", "--sizes", "8"], ["tune", "--hosts", "a:2,b:1"], ["doctor", "-n", "4"]):
        with pytest.raises(SystemExit):
            cli.main(arguments)
    assert [given[0] for given in started] == [2, 3, 4]
    assert started[0][1] == ["bench", "-n", "2", "--sizes", "8"]
    assert str(started[1][2]) == "a:2,b:1"


@pytest.mark.parametrize(
    "library, expected",
    [
        ("MPICH", ["-n", "3"]),
        ("Intel MPI", ["-n", "3"]),
        ("Open MPI", ["-n", "3", "--oversubscribe"]),
    ],
)
def test_each_library_gets_the_flags_it_needs(monkeypatch, library, expected):
    monkeypatch.setattr(launch, "library", lambda: launch.Library(library, library))
    monkeypatch.setattr(launch, "launcher", lambda: launch.Launcher("/opt/bin/mpiexec", library))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    made = launch.command(3, ["-c", "pass"])
    assert made.command == ["/opt/bin/mpiexec", *expected, sys.executable, "-c", "pass"]
    assert made.environment["PATH"].startswith("/opt/bin:")
    assert made.environment[launch.RANKS] == "3"
    assert ("OMPI_ALLOW_RUN_AS_ROOT" in made.environment) == (library == "Open MPI" and os.geteuid() == 0)
    assert launch.command(2, [], Hosts(parse("a:1,b:1"))).command[3:5] == (
        ["--map-by", "slot:OVERSUBSCRIBE"] if library == "Open MPI" else ["-hosts", "a:1,b:1"])  # fmt: skip


def test_the_launcher_is_the_librarys_own_and_not_the_first_on_the_path(monkeypatch, tmp_path):
    for name, says in (("a", "mpirun (Open MPI) 5.0.11"), ("b", "HYDRA build details: Version: 5.0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mpiexec").write_text(f"#!/bin/sh\necho '{says}'\n")
        (tmp_path / name / "mpiexec").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/a:{tmp_path}/b:{os.defpath}")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(launch, "library", lambda: launch.Library("MPICH", "MPICH Version: 5"))
    assert launch.launcher().path == str(tmp_path / "b" / "mpiexec")
    monkeypatch.setattr(launch, "library", lambda: launch.Library("Intel MPI", "Intel(R) MPI Library 2021"))
    with pytest.raises(LaunchError, match=r"no mpiexec of Intel MPI .*a/mpiexec \(Open MPI\).*pip install impi-rt"):
        launch.launcher()


def test_worlds_of_one_are_recognised(monkeypatch):
    monkeypatch.setattr(launch, "library", lambda: launch.Library("MPICH", "MPICH 5"))
    monkeypatch.setattr(launch, "launcher", lambda: launch.Launcher("/right/mpiexec", "MPICH"))
    foreign = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}
    wrong = launch.worlds_of_one(1, foreign) or ""
    assert "4 processes were started (OMPI_COMM_WORLD_SIZE=4), but mpi4py uses MPICH 5" in wrong
    assert "start with /right/mpiexec" in wrong
    assert "4 processes were started by Open MPI" in (launch.foreign_launcher(foreign) or "")
    assert launch.foreign_launcher({"PMI_SIZE": "4", "PMI_RANK": "0"}) is None
    assert launch.worlds_of_one(4, foreign) is None
    assert launch.worlds_of_one(1, {}) is None
    assert launch.worlds_of_one(1, {"PMI_SIZE": "1", "PMI_RANK": "0"}) is None
    assert launch.RANKS in (launch.worlds_of_one(1, {launch.RANKS: "2"}) or "")
