"""What a tuning run keeps on disk while it runs: finished trials and raw samples. A kill at any point loses neither."""

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from tuner.measure import read_samples

BUFFER = 1 << 20  # bytes: a line of samples is written at once, so that two runs may share a file


class Lock:
    """For one process at a time. Optuna's own stays behind when its holder is killed; this one goes with it."""

    def __init__(self, beside: str):
        self.path, self.file = f"{beside}.lock", -1

    def acquire(self) -> bool:
        self.file = os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o666)
        fcntl.flock(self.file, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        os.close(self.file)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class JournalLock(Lock):
    """Who gets it drops what a writer that was killed, or a machine that went down, has left of a line.

    Else the next line would continue that one, and nobody could read the journal again.
    """

    def __init__(self, journal: str):
        super().__init__(journal)
        self.journal = Path(journal)

    def acquire(self) -> bool:
        super().acquire()
        mend(self.journal)
        return True


def storage_of(url: str | None) -> Any:
    """Optuna's storage: memory, a journal file, or a database. ValueError for a file that is something else."""
    if url is None or "://" in url:
        return database(url)
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    if os.path.exists(url) and not is_journal(Path(url)):
        raise ValueError("it is there, and no journal of trials")
    lock: Any = JournalLock(url)
    return JournalStorage(JournalFileBackend(url, lock))


def database(url: str | None) -> Any:
    """Optuna's memory or database; an SQLite file with a lock, where Optuna counts on rows that it can lock.

    Without, two that make the file at once both fail, and two may take the same trial.
    """
    import optuna

    file = (url or "").removeprefix("sqlite:///")
    if file == (url or ""):
        return optuna.storages.get_storage(url)
    with Lock(file):
        storage: Any = optuna.storages.get_storage(url)
    take = storage.set_trial_state_values

    def exclusively(*given: Any, **named: Any) -> Any:
        with Lock(file):
            return take(*given, **named)

    storage.set_trial_state_values = exclusively
    return storage


def is_journal(path: Path) -> bool:
    """Whether it is empty, or begins with an entry of Optuna's journal, or with what a kill has left of one."""
    with path.open("rb") as file:
        first = file.readline(1 << 16)
    if not first.endswith(b"\n"):
        return first[:1] in (b"", b"{")
    try:
        return "op_code" in json.loads(first)
    except (ValueError, TypeError):
        return False


def mend(path: Path) -> None:
    """Cut a file of lines behind its last whole one. The caller holds what lets nobody else write."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        if end == 0:
            return
        file.seek(end - 1)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def open_samples(path: Path, dropped: Callable[[dict[str, Any]], bool]) -> tuple[IO[str], int]:
    """The file of raw samples, to be appended to, without lines that are dropped or torn; and the last job in it.

    What stays is written anew as a whole or not at all.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = read_samples(path) if text else []
    kept = [line for line in lines if not dropped(line)]
    if len(kept) < len(text.splitlines()) or not text.endswith("\n"):
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        os.replace(temporary, path)
    return open(path, "a", encoding="utf-8", buffering=BUFFER), max((line["job"] for line in kept), default=0)
