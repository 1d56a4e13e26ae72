"""Hosts that are named, listed in a file, or allocated by Slurm; and what is said of those that do not answer."""

import os
import sys

import pytest

from collectives.errors import LaunchError
from tests.launch import INHERITED
from tuner import cli, launch
from tuner.hosts import Host, Hosts, allocated_ranks, parse, read, srun

AGENT = """#!/bin/sh
case $1 in
  good) exec "$2" ;;
  silent) sleep 60 ;;
  *) echo "$1: permission denied" >&2; exit 255 ;;
esac
"""
SRUN = """#!/bin/sh
[ "$1" = --mpi=list ] && { echo "MPI plugin types are..." >&2; echo "	none pmi2 cray_shasta" >&2; exit 0; }
shift 3
exec "$@"
"""


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    for name in [name for name in os.environ if name.startswith((*INHERITED, "SLURM_"))]:
        monkeypatch.delenv(name)


def test_hosts_in_a_line_and_in_a_file(tmp_path):
    wanted = (Host("h1", 2), Host("n1.a", 1), Host("h1", 3))
    assert parse("h1:2, n1.a,h1:3") == wanted
    assert str(Hosts(wanted)) == "h1:2,n1.a:1,h1:3"
    file = tmp_path / "hosts"
    file.write_text("# a cluster\n\nh1 slots=2 max_slots=4\nn1.a   # the old one\nh1:3\n")
    assert read(file) == wanted


@pytest.mark.parametrize(
    "text, said",
    [
        ("h1\nh2 slots=two\n", "line 2: 'h2:two' is not HOST or HOST:RANKS"),
        ("h1 cores=2\n", "line 1: 'h1 cores=2' is not HOST, HOST:RANKS or HOST slots=RANKS"),
        ("h1:2 slots=2\n", "line 1"),
        ("# nobody\n", "names no host"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path, text, said, capsys):
    file = tmp_path / "hosts"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=said):
        read(file)
    assert cli.main(["bench", "--hostfile", str(file)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--hosts", "a", "--hostfile", "b"], "name hosts in one of them"),
        (["--agent", "rsh"], "--agent reaches hosts: name some"),
    ],
)
def test_flags_that_contradict_each_other(flags, said, capsys):
    assert cli.main(["bench", *flags]) == 2
    assert said in capsys.readouterr().err


def test_hosts_that_do_not_answer_are_named_with_their_ranks(tmp_path):
    agent = script(tmp_path / "agent", AGENT)
    Hosts(parse("good:2,localhost:1"), agent).reach(20)
    with pytest.raises(LaunchError) as caught:
        Hosts(parse("good:2,silent:2,closed:1,silent:1"), agent).reach(0.5)
    said = str(caught.value)
    assert "silent (ranks 2 to 3, rank 5) does not answer within 0.5 s" in said
    assert "closed (rank 4) answers with exit status 255: closed: permission denied" in said
    assert "good" not in said
    assert f"try by hand: {agent} silent true" in said
    with pytest.raises(LaunchError, match=r"h \(rank 0\) cannot be asked: /no/agent: No such file"):
        Hosts(parse("h"), "/no/agent").reach(1)


@pytest.mark.parametrize(
    "library, expected",
    [
        ("MPICH", ["-launcher", "rsh", "-launcher-exec", "/an/agent", "-hosts", "a:1,b:1"]),
        ("Intel MPI", ["-bootstrap", "rsh", "-bootstrap-exec", "/an/agent", "-hosts", "a:1,b:1"]),
        ("Open MPI", ["--prtemca", "plm_ssh_agent", "/an/agent"]),
    ],
)
def test_each_library_is_told_its_agent(library, expected):
    options, environment = launch.flags(library, 2, Hosts(parse("a:1,b:1"), "/an/agent"))
    assert " ".join(expected) in " ".join(options)
    assert (environment.get("PMIX_MCA_pmix_keep_fqdn_hostnames") == "1") == (library == "Open MPI")


def test_in_an_allocation_srun_starts_ranks_where_it_speaks_the_librarys_pmi(tmp_path, monkeypatch):
    path = script(tmp_path / "srun", SRUN)
    for name, value in {"PATH": f"{tmp_path}:{os.defpath}", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "6"}.items():
        monkeypatch.setenv(name, value)
    assert srun("MPICH", 4, os.environ) == [path, "-n", "4", "--mpi=pmi2"]
    assert srun("Open MPI", 4, os.environ) is None  # which needs pmix: its mpirun knows Slurm by itself
    assert srun("Intel MPI", 4, os.environ) is None
    assert srun("Intel MPI", 4, {**os.environ, "I_MPI_PMI_LIBRARY": "libpmi2.so"}) == [path, "-n", "4", "--mpi=pmi2"]
    assert allocated_ranks(os.environ) == 6
    monkeypatch.setattr(launch, "library", lambda: launch.Library("MPICH", "MPICH 5"))
    made = launch.command(4, ["-c", "pass"])
    assert made.command == [path, "-n", "4", "--mpi=pmi2", sys.executable, "-c", "pass"]
    assert made.environment[launch.RANKS] == "4"
    for step, inside in (("4294967290", True), ("0", False)):  # salloc's shell, and a rank
        monkeypatch.setenv("SLURM_STEP_ID", step)
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
        monkeypatch.setenv("SLURM_PROCID", "1")
        assert (srun("MPICH", 4, os.environ) is not None) == inside
        assert launch.announced() == (None if inside else ("SLURM_STEP_NUM_TASKS", 2, 1))
    monkeypatch.delenv("SLURM_JOB_ID")
    assert allocated_ranks(os.environ) is None


def test_a_command_without_n_takes_the_allocations_tasks(tmp_path, monkeypatch):
    script(tmp_path / "srun", SRUN)
    for name, value in {"PATH": f"{tmp_path}:{os.defpath}", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "6"}.items():
        monkeypatch.setenv(name, value)
    started = []

    def execute(*given):
        started.append(given)
        raise SystemExit(0)

    monkeypatch.setattr(launch, "execute", execute)
    with pytest.raises(SystemExit):
        cli.main(["bench", "--sizes", "8"])
    assert started == [(6, ["bench", "--sizes", "8"], None)]
