"""Machines that lack something, or have several users: treering serves or says why, and the doctor finds it."""

import json
import os
import shutil
import subprocess

import pytest

from tests import launch
from tests.programs.deprived import APART
from tests.programs.neighbours import OTHER

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def apart():
    """Runs a program of tests.programs in namespaces of its own; its standard output, and its exit status."""
    tools = [tool for tool in ("unshare", "mount", "ip", "setpriv") if shutil.which(tool) is None]
    if os.geteuid() or tools:
        pytest.skip(f"{', '.join(tools)} not found" if tools else "namespaces of one's own need root")
    tried = subprocess.run([*APART, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no namespaces here: {tried.stderr.strip()}")
    library = launch.find("mpich")
    if library is None:
        pytest.skip("needs MPICH")

    def run(program, *arguments, env=None):
        command = [*APART, library.python, "-m", f"tests.programs.{program}", *arguments]
        done = launch.run_command(command, library.environment(env), timeout=120)
        return done, launch.describe(done.args, done.returncode, done.stdout, done.stderr)

    return run, library


def test_the_doctor_finds_what_a_machine_lacks_and_names_the_mend(apart):
    run, library = apart
    done, said = run("deprived", "memory,home,ports,reading", library.python, "-m", "tuner.cli", "doctor", "--json")
    assert done.returncode == 1, said
    checks = {each["name"]: each for each in json.loads(done.stdout)["checks"]}
    for name, found, mend in (
        ("shared memory", "64 MiB free of 64 MiB", "make it larger (docker run --shm-size=1g)"),
        ("compile cache", "empty", "cannot be written: name a folder in TREERING_CACHE_DIR"),
        ("ports", "none can be had of 127.0.0.1: Address already in use", "net.ipv4.ip_local_port_range"),
        ("launch of 2 ranks", "failed to bind to any port", "see the launcher's own message"),
        ("process_vm_readv", "refused (Operation not permitted)", "--cap-add=SYS_PTRACE"),
    ):
        assert checks[name]["ok"] == (name == "process_vm_readv"), said
        assert found in checks[name]["found"], said
        assert mend in checks[name]["mend"], said


def test_ranks_serve_in_little_memory_without_reading_each_other(apart):
    """A registered tensor needs /dev/shm, as torch shares it, and is refused where that is full; never a bus error."""
    run, library = apart
    command = library.command(3, ["-m", "tests.programs.cramped"])
    done, said = run("deprived", "memory,reading", *command)
    assert done.returncode == 0, said
    found = json.loads(done.stdout)
    assert not found["read"]
    told = found["refused"].pop("register")
    assert all(each.startswith("UnsupportedError: a rank of the node cannot share its storage") for each in told), said
    assert found["refused"] == {}, said


@pytest.mark.full
def test_two_users_of_a_machine_are_no_trouble_to_each_other(apart):
    run, library = apart
    if not all(folder.stat().st_mode & 0o001 for folder in (launch.ROOT, *launch.ROOT.parents)):
        pytest.skip("another user cannot enter this checkout")
    done, said = run("neighbours", library.mpiexec, library.python)
    assert done.returncode == 0, said
    found = json.loads(done.stdout)
    for user in (0, OTHER):
        assert found[str(user)] == [0, f"('/dev/shm/treering-{user}', {user}, '0o600')"], said
    assert found["late"] == [0, "None"], said  # a folder of somebody else's holds nothing of ours
