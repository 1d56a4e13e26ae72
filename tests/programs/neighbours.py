"""Two users of one machine, at once, and one who has made what the other's files would be called. For root, apart.

python -m tests.programs.neighbours MPIEXEC PYTHON: ranks of both users each allreduce in memory of every kind while
the others do. Prints {user: [status, what its ranks said]} as JSON; "late": of the second one, when its folder is
another's.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from collectives.native.cache import folder
from tests import launch

OTHER = 54_321  # a user that has no files
SHARED, TEMPORARY = Path("/dev/shm"), Path("/tmp")
RANK = """
import os, time, torch, collectives
from pathlib import Path
comm = collectives.Communicator(timeout=60)
x, y = comm.empty(50_000), torch.empty(50_000)
for _ in range(20):
    for each in (x, y):
        each.fill_(comm.rank + 1.0)
        comm.allreduce(each)
        assert (each == 3).all()
record = comm._channel.endpoint.record.path
Path(os.environ["TMPDIR"], f"here-{comm.rank}").touch()
until = time.monotonic() + 20
while not Path(os.environ["AWAITED"]).exists() and time.monotonic() < until:
    time.sleep(0.01)  # both jobs are there at one time
if comm.rank == 0:
    about = record and record.stat()
    print(record and (str(record.parent), about.st_uid, oct(about.st_mode & 0o777)))
comm.close()
"""


def reveal(place: Path) -> None:
    """Let everybody come to a folder that lies in somebody's home."""
    closed = next((each for each in reversed(place.parents) if not each.stat().st_mode & 0o001), None)
    if closed is not None:
        aside = tempfile.mkdtemp()
        subprocess.run(["mount", "--bind", str(place), aside], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(closed)], check=True)
        place.mkdir(parents=True)
        subprocess.run(["mount", "--bind", aside, str(place)], check=True)


def start(user: int, mpiexec: str, python: str, scratch: Path, awaited: Path) -> "subprocess.Popen[str]":
    """Two ranks of the user's, with a cache of compiled code that is the user's own."""
    mine = scratch / str(user)
    if not mine.exists():
        shutil.copytree(scratch / "compiled", mine / "cache" / folder().name)
        for path in (mine, *mine.rglob("*")):
            os.chown(path, user, user)
    environment = {**os.environ, "TREERING_CACHE_DIR": str(mine / "cache"), "TMPDIR": str(mine), "HOME": str(mine)}
    environment["AWAITED"] = str(awaited)
    for name in ("XDG_RUNTIME_DIR", "TREERING_RUN_DIR", launch.STACKS):
        environment.pop(name, None)
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    command = [*become, mpiexec, "-n", "2", python, "-c", RANK]
    return subprocess.Popen(
        command, env=environment, cwd=mine, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended(process: "subprocess.Popen[str]") -> list[object]:
    said, _ = process.communicate(timeout=90)
    return [process.returncode, said.strip()]


def main(mpiexec: str, python: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(SHARED)], check=True)
    scratch = Path(tempfile.mkdtemp(dir=TEMPORARY))
    shutil.copytree(folder(), scratch / "compiled")
    reveal(Path(sys.base_prefix))
    scratch.chmod(0o711)
    try:
        pair = 0, OTHER
        places = {user: scratch / str(user) / "here-0" for user in pair}
        running = {user: start(user, mpiexec, python, scratch, places[pair[user == 0]]) for user in pair}
        seen = {str(user): ended(each) for user, each in running.items()}
        shutil.rmtree(SHARED / f"treering-{OTHER}", ignore_errors=True)
        (SHARED / f"treering-{OTHER}").mkdir(mode=0o777)
        seen["late"] = ended(start(OTHER, mpiexec, python, scratch, scratch))
        print(json.dumps(seen))
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main(*sys.argv[1:])
