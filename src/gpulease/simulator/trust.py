"""Whether a place on disk can be changed by nobody but this user and root.

What is loaded from there runs as this user, so a doubt is a no. A place is checked with everything above
it: who may rename a folder on the way decides what the rest of the path means.
"""

from __future__ import annotations

import os
import stat

OTHERS_MAY_WRITE = 0o022


def is_safe_folder(path: str) -> bool:
    """A real directory of this user's or root's with only such ones above it; no symbolic link on the way."""
    try:
        return all(_is_safe_step(step, is_last=step == path) for step in _steps(path))
    except OSError:
        return False


def keeps_what_is_ours(path: str) -> bool:
    """Whether what this user makes in the folder, such as /tmp, can be renamed or removed by nobody else."""
    try:
        return all(_is_safe_step(step, is_last=False) for step in _steps(path))
    except OSError:
        return False


def is_private_folder(path: str) -> bool:
    """As above; and only this user may even look into it."""
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    return seen.st_uid == os.geteuid() and stat.S_IMODE(seen.st_mode) == 0o700 and is_safe_folder(path)


def is_safe_file(path: str) -> bool:
    """A regular file of this user's or root's in a safe folder."""
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(seen.st_mode) and _is_ours(seen) and is_safe_folder(os.path.dirname(path))


def make_private_folders(path: str) -> None:
    """The folder and what is missing above it, each for this user alone whatever the umask is."""
    for step in _steps(path):
        if not os.path.lexists(step):
            try:
                os.mkdir(step, 0o700)
            except FileExistsError:  # another process was quicker; who it was is checked afterwards
                continue


def _steps(path: str) -> list[str]:
    """`/`, `/a`, `/a/b` for `/a/b`."""
    steps = [path]
    while (above := os.path.dirname(steps[-1])) != steps[-1]:
        steps.append(above)
    return steps[::-1]


def _is_safe_step(path: str, is_last: bool) -> bool:
    seen = os.lstat(path)
    if not stat.S_ISDIR(seen.st_mode):
        return False
    # In a folder such as /tmp the sticky bit keeps others from renaming what is ours.
    return _is_ours(seen) or (not is_last and _is_trusted(seen) and bool(seen.st_mode & stat.S_ISVTX))


def _is_ours(seen: os.stat_result) -> bool:
    return _is_trusted(seen) and not seen.st_mode & OTHERS_MAY_WRITE


def _is_trusted(seen: os.stat_result) -> bool:
    return seen.st_uid in (os.geteuid(), 0)
