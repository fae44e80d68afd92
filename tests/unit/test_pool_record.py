"""A pickle runs code when it is read, so results are read only where nobody else can have written them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from support.other_users import needs_root

from gpulease.errors import NotPermitted
from gpulease.pool.record import Record

PLANTED = b"cos\nmkdir\n(V%s\ntR."


def record(folder: Path) -> Record:
    return Record(folder, len, lambda item: str(item))


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    for mode in (0o777, 0o1777, 0o775):
        tmp_path.chmod(mode)
        with pytest.raises(NotPermitted, match="can be written by others"):
            record(tmp_path)
    tmp_path.chmod(0o755)
    record(tmp_path)


def test_a_folder_that_is_made_is_ones_own_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        record(tmp_path / "results")
    finally:
        os.umask(before)
    record(tmp_path / "results").write("one.pickle", 1)
    assert record(tmp_path / "results").read("one.pickle") == 1


@needs_root
def test_another_users_file_is_not_read(tmp_path: Path) -> None:
    """Before, what another user had put into the folder ran as whoever read it."""
    harmed, planted = tmp_path / "harmed", tmp_path / "one.pickle"
    planted.write_bytes(PLANTED % os.fsencode(harmed))
    os.chown(planted, 12345, 12345)
    with pytest.raises(NotPermitted, match="belongs to another user"):
        record(tmp_path).read("one.pickle")
    assert not harmed.exists()
    pickle.loads(planted.read_bytes())  # else it would prove nothing
    assert harmed.exists()


@needs_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(NotPermitted, match="can be written by others"):
        record(tmp_path)
