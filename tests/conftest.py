"""Fixtures: ranks under each MPI library, and a watch over what a test run leaves in shared memory."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests import launch

OTHERS = set(launch.LIBRARIES) - {"mpich"}
REST = (launch.ROOT / "tests" / "hosts", launch.ROOT / "tests" / "cuda")
SCOPES = {  # of tests that start ranks, nearly all there
    "tests/mpi/": "ranks",
    "tests/hosts/": "ranks",
    "tests/cuda/test_calls": "ranks",
    "tests/readme/": "pages",
}
LEFT_BEFORE = pytest.StashKey[set[str]]()
LEFT_BEHIND = pytest.StashKey[list[str]]()


@dataclass(frozen=True)
class Ranks:
    """Starts programs as ranks under one MPI library."""

    name: str

    def __call__(
        self, n: int, program: str, *args: object, timeout: float = 120, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `python -m tests.programs.PROGRAM ARGS` as `n` ranks; anything but exit status 0 fails the test."""
        done = self.run(n, ["-m", f"tests.programs.{program}", *map(str, args)], timeout=timeout, env=env)
        if done.returncode != 0:
            pytest.fail(launch.describe(done.args, done.returncode, done.stdout, done.stderr), pytrace=False)
        return done

    def run(
        self,
        n: int,
        program: list[str],
        *,
        timeout: float = 120,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = launch.ROOT,
    ) -> subprocess.CompletedProcess[str]:
        """Run `python *program` as `n` ranks, whatever exit status: for tests of what goes wrong."""
        return launch.run(n, program, mpi=self.name, timeout=timeout, env=env, cwd=cwd)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-mpi", action="store_true", help="fail, not skip, where an MPI library is missing")
    parser.addoption("--require-hosts", action="store_true", help="fail, not skip, where there can be no bed of hosts")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Other MPI libraries than MPICH, beds of hosts and device code are of the full tier, where no mark says so too."""
    for item in items:
        given = getattr(item, "callspec", None)
        params = set(map(str, given.params.values())) if given else set()
        if params & OTHERS or any(folder in item.path.parents for folder in REST):
            item.add_marker(pytest.mark.full)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Where several workers test, one of them starts all ranks, a launch at a time; and one runs what pages show."""
    return Scheduling(config, log)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc] # which has no types
    def _split_scope(self, nodeid: str) -> str:
        """Tests of one scope are one worker's."""
        return next((scope for folder, scope in SCOPES.items() if nodeid.startswith(folder)), nodeid)


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.mpi) for name in launch.LIBRARIES])
def mpi(request: pytest.FixtureRequest) -> Ranks:
    """Ranks under MPICH, Open MPI and Intel MPI in turn: `mpi(4, "program", "argument")`."""
    return _ranks(request.param, request.config)


@pytest.fixture(params=[pytest.param("mpich", marks=pytest.mark.mpi)])
def mpich(request: pytest.FixtureRequest) -> Ranks:
    """Ranks under MPICH alone, for what does not depend on the MPI library."""
    return _ranks(request.param, request.config)


def _ranks(name: str, config: pytest.Config) -> Ranks:
    if launch.find(name) is None:
        reason = f"no environment for {name}: run `make {name}`"
        if config.getoption("--require-mpi"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return Ranks(name)


def ours_in_shared_memory() -> set[str]:
    return {name for name in launch.shared_memory() if name.startswith("treering")}


def left_behind(before: set[str]) -> set[str]:
    """What nobody holds and was not there before; for some time, since others' ranks may be starting and ending."""
    left = set[str]()
    for _ in range(20):
        new = ours_in_shared_memory() - before
        left = (new - launch.held(new)) & ours_in_shared_memory()
        if not left:
            break
        time.sleep(0.1)
    return left


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # one of several workers sees what the others' ranks are using
        session.config.stash[LEFT_BEFORE] = ours_in_shared_memory()


def pytest_sessionfinish(session: pytest.Session) -> None:
    before = session.config.stash.get(LEFT_BEFORE, None)
    if before is None:
        return
    left = left_behind(before)
    session.config.stash[LEFT_BEHIND] = sorted(left)
    if left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left := config.stash.get(LEFT_BEHIND, []):
        terminalreporter.section("left in shared memory", red=True)
        terminalreporter.line(f"{launch.SHARED_MEMORY}: {', '.join(left)}: whoever made them must remove them")
