"""Where compiled code is kept, and who compiles first.

Numba looks only at the file of an entry point to see whether it has changed, so the folder's name holds a hash of all
native sources. One process of a host compiles, under a lock; the others wait for it and load what it wrote.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba

from collectives.folders import private
from collectives.says import remark


@cache
def folder() -> Path:
    """This version's folder: TREERING_CACHE_DIR, the user's cache folder, or a private temporary one."""
    digest = hashlib.sha256()
    for source in sorted([*Path(__file__).parent.glob("*.py"), Path(__file__).parent.parent / "layout.py"]):
        digest.update(source.read_bytes())
    processor = llvmlite.binding.get_host_cpu_name()  # homes are shared by machines of several kinds
    for version in (numba.__version__, llvmlite.__version__, platform.python_version(), processor):
        digest.update(version.encode())
    name = digest.hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    wanted = os.environ.get("TREERING_CACHE_DIR") or os.path.join(home, "treering")
    guessed = Path(tempfile.gettempdir(), f"treering-{os.geteuid()}")
    for root in (Path(wanted), guessed):
        path = root / name
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            continue
        # Who can write there decides what code runs here: Numba unpickles what it finds.
        if os.access(path, os.W_OK) and private(path) and (root != guessed or private(root)):
            return path
    return Path(tempfile.mkdtemp(prefix="treering-"))


@contextlib.contextmanager
def compiling(what: str) -> Iterator[None]:
    """Around what Numba compiles or loads: our folder, and one process at a time while `what` is not there yet."""
    settings: Any = numba.config
    there = folder() / f"{what}.{settings.CPU_NAME or 'host'}.done"
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(folder())
    try:
        if there.exists():
            yield
            return
        with open(folder() / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not there.exists() and what == "executor":
                remark("compiling for this machine, once: ten seconds, or a minute where it is busy")
            yield
            there.touch()
    finally:
        settings.CACHE_DIR = before
