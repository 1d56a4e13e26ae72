"""Which treering this is: what ranks on several hosts must have the same of, since each makes its own schedules."""

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@cache
def release() -> str:
    """The version, and a digest of the sources that ranks run: a version in the making changes without its number."""
    digest, folder = hashlib.sha256(), Path(__file__).parents[1]
    for source in sorted(folder.rglob("*.py")):
        digest.update(source.relative_to(folder).as_posix().encode() + source.read_bytes())
    try:
        number = version("treering")
    except PackageNotFoundError:
        number = "not installed"
    return f"{number} (sources {digest.hexdigest()[:8]})"
