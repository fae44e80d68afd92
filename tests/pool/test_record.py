"""Results are read only where nobody else can have written them, and only those of the function as it is now.

A pickle runs code when it is read.
"""

from __future__ import annotations

import importlib
import linecache
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.other_users import needs_root

from gpulease.errors import NotPermitted, UsageError
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


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Callable[..., object]]:
    """The function of a file after that was edited: as a new run of the program finds it."""
    monkeypatch.syspath_prepend(tmp_path)

    def edited(text: str, more: str = "") -> Callable[..., object]:
        (tmp_path / "training.py").write_text(f"def work(item):\n    {text}\n{more}")
        sys.modules.pop("training", None)
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        linecache.checkcache()
        work: Callable[..., object] = importlib.import_module("training").work
        return work

    return edited


@pytest.mark.parametrize("key", [None, str])
@pytest.mark.parametrize("wrap", [lambda work: work, partial])
def test_results_of_a_function_that_was_changed_since_are_refused(
    tmp_path: Path, edited: Callable[[str], Callable[..., object]], key: Any, wrap: Any
) -> None:
    """Before, the results of the old function were given for the new one's, without a word."""
    folder = tmp_path / "results"
    Record(folder, wrap(edited("return item * item")), key).write("one.pickle", 1)
    Record(folder, wrap(edited("return item * item  # squared")), key)
    new = wrap(edited("return item * item * 2"))
    with pytest.raises(UsageError, match=r"The code of training\.work has changed since the results"):
        Record(folder, new, key)
    with pytest.raises(UsageError, match="has changed"):  # and is not forgotten
        Record(folder, new, key)
    next(folder.glob(".training.work.source")).unlink()
    Record(folder, new, key)
    (folder / "one.pickle").unlink()
    Record(folder, wrap(edited("return 0")), key)


USES = """
def scale(item):
    return Model().forward(item)

class Model:
    def forward(self, item):
        return item * {0}

def load():
    return {1}

def other():
    return {2}
"""


def test_results_are_refused_after_an_edit_of_what_the_function_uses_or_of_init(
    tmp_path: Path, edited: Callable[..., Callable[..., object]]
) -> None:
    """Before, an edit of a helper in the same file, or of init, was not seen."""

    def recorded(*values: int) -> Record:
        work = edited("return scale(item)", USES.format(*values))
        return Record(tmp_path / "results", work, None, sys.modules["training"].load)

    recorded(1, 1, 1).write("one.pickle", 1)
    recorded(1, 1, 2)  # what it does not use may change
    with pytest.raises(UsageError, match=r"The code of training\.Model has changed"):
        recorded(2, 1, 1)
    with pytest.raises(UsageError, match=r"The code of training\.load has changed"):
        recorded(1, 2, 1)
