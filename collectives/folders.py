"""Folders whose names anybody can guess, in places where anybody may write: ours only if nobody else can touch them."""

import os
import stat
from pathlib import Path


def private(folder: Path) -> bool:
    """Whether it is a folder of this user's that no other can write to; not a link to one."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
