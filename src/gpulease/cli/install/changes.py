"""Files and folders as they should be, and what has to change to have them so.

Each file ends with a mark: a checksum of what stands above it. A file whose mark fits is ours, and is replaced or
removed. Any other was edited by hand, or is somebody else's, and stays.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from gpulease.errors import StateError

MARK = "`, which leaves it alone once it is edited. Checksum: "


class File(NamedTuple):
    path: str
    content: str | None  # None: a folder
    mode: int = 0o644
    owner: str | None = "root"  # None: the user who installs it
    data: bool = False  # a folder with what users made; only a purge removes it
    settings: bool = False  # where it was edited, the new version is written beside it


class Change(NamedTuple):
    """What is to be done: `make`, `replace`, `mode`, `remove`; or nothing: `none`, `edited`."""

    action: str
    file: File
    backup: bool = False  # whether what is there gets another name first


def sealed(text: str, comment: str = "#", by: str = "install") -> str:
    return f"{text}{comment} Written by `gpulease {by}{MARK}{_checksum(text)}\n"


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_sealed(text: str) -> bool:
    body, _, last = text.removesuffix("\n").rpartition("\n")
    return last.partition(MARK)[2] == _checksum(f"{body}\n")


class Target:
    """Where files go: below `root`, whose owners are set only if it is this machine's own and we may."""

    def __init__(self, root: str = "/", force: bool = False) -> None:
        self.root, self.force = root, force
        self.owners = root == "/" and os.geteuid() == 0

    def path(self, file: File) -> str:
        return os.path.join(self.root, file.path.lstrip("/"))

    def needed(self, files: Iterable[File]) -> Iterator[Change]:
        for file in files:
            change = self._needed(file)
            yield change
            if change.action == "edited" and file.settings:
                yield self._needed(file._replace(path=f"{file.path}.new", settings=False))

    def _needed(self, file: File) -> Change:
        path = self.path(file)
        if not os.path.lexists(path):
            return Change("make", file)
        if file.content is not None:
            found = _read(path)
            if found is None or not (is_sealed(found) or found == file.content):
                replaced = self.force and not file.settings
                return Change("replace", file, True) if replaced else Change("edited", file)
            if found != file.content:
                return Change("replace", file)
        elif not os.path.isdir(path):
            raise StateError(f"{path} is not a folder.", "Remove it, or give it another name.")
        return Change("none" if self._as_it_should_be(path, file) else "mode", file)

    def _as_it_should_be(self, path: str, file: File) -> bool:
        seen = os.stat(path)
        owned = not self.owners or file.owner is None or number_of(file.owner) == seen.st_uid
        return owned and stat.S_IMODE(seen.st_mode) == file.mode

    def removable(self, files: Iterable[File], purge: bool) -> Iterator[Change]:
        """The last first: what is in a folder before the folder."""
        gone: set[str] = set()
        for file in [*files][::-1]:
            for one in (file._replace(path=f"{file.path}.new"), file) if file.settings else (file,):
                if os.path.lexists(self.path(one)):
                    change = self._removable(one, purge, gone)
                    yield change
                    gone |= {self.path(one)} if change.action == "remove" else set()

    def _removable(self, file: File, purge: bool, gone: set[str]) -> Change:
        path = self.path(file)
        if file.content is None:
            empty = file.data or {entry.path for entry in os.scandir(path)} <= gone
            return Change("remove" if empty and (purge or not file.data) else "none", file)
        edited = was_edited(path)
        return Change("edited" if edited and not self.force else "remove", file, edited)

    def carry_out(self, change: Change) -> None:
        path = self.path(change.file)
        try:
            if change.action in ("make", "replace"):
                self._make(path, change)
            elif change.action == "mode":
                self._set_mode(path, change)
            elif change.action == "remove":
                _remove(path, change)
        except OSError as trouble:
            what = f"{trouble.filename or path} cannot be changed: {trouble.strerror}."
            raise StateError(what, "Correct that and try again; what was done before this stays.") from None

    def _make(self, path: str, change: Change) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if change.backup:
            os.rename(path, _backup_name(path))
        if change.file.content is None:
            os.mkdir(path, 0o700)
            return self._set_mode(path, change)
        fresh = f"{path}.{secrets.token_hex(8)}.part"  # a name that nobody could put something under before
        try:
            with open(fresh, "x", encoding="utf-8", opener=_private) as file:
                file.write(change.file.content)
            self._set_mode(fresh, change)
            os.rename(fresh, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(fresh)
            raise

    def _set_mode(self, path: str, change: Change) -> None:
        if self.owners and change.file.owner is not None:
            account = pwd.getpwnam(change.file.owner)
            os.chown(path, account.pw_uid, account.pw_gid)
        os.chmod(path, change.file.mode)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _remove(path: str, change: Change) -> None:
    if change.backup:
        os.rename(path, _backup_name(path))
    elif change.file.content is not None:
        os.unlink(path)
    elif change.file.data:
        shutil.rmtree(path)
    else:
        os.rmdir(path)


def _read(path: str) -> str | None:
    """What a file says; None for what is no file, such as the link of a masked unit."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return None
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            return file.read()
    except OSError as trouble:
        raise StateError(f"{path} cannot be read: {trouble.strerror}.") from None


def was_edited(path: str) -> bool:
    return os.path.lexists(path) and not is_sealed(_read(path) or "")


def number_of(owner: str) -> int | None:
    """None where there is no such account."""
    try:
        return pwd.getpwnam(owner).pw_uid
    except KeyError:
        return None


def _backup_name(path: str) -> str:
    names = (f"{path}.bak{number or ''}" for number in range(1000))
    return next(name for name in names if not os.path.lexists(name))
