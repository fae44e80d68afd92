"""A state folder that cannot be used: commands say what is wrong and what to do, and so does doctor."""

from __future__ import annotations

import os

import pytest
from support.island import Island, fresh_island, gpulease  # noqa: F401  # pytest finds the fixture here
from support.needs import needs_root

FIRST = 61001
HOST = os.uname().nodename

pytestmark = needs_root


FOLDERS = {
    "closed": ("mkdir -m 755 /run/s", "Permission denied", "/run/s cannot be written to"),
    "of another": (
        f"mkdir -p /run/s/gpulease/{HOST} && chmod -R 755 /run/s", "it belongs to root", "it belongs to root"
    ),
    "open to others": (
        f"mkdir -p /run/s/gpulease/{HOST} && chmod -R 777 /run/s && chown -R {FIRST} /run/s",
        "others may write in it", "others may write in it",
    ),
    "read-only": (
        f"mkdir -m 777 /run/s && mount -t tmpfs -o mode=777 none /run/s && mkdir -p /run/s/gpulease/{HOST} "
        f"&& chmod 700 /run/s/gpulease/* && chown -R {FIRST} /run/s/gpulease && mount -o remount,ro /run/s",
        "Read-only file system", "cannot be written to",
    ),
    "full": (
        "mkdir -m 777 /run/s && mount -t tmpfs -o size=16k,mode=777 none /run/s", "is full", "the disk of /run/s",
    ),
}  # fmt: skip


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_wrong_with_the_folder_is_said_by_commands_and_by_doctor(island: Island, folder: str) -> None:
    """Before, `run` said only `Run gpulease doctor`, and doctor said ok."""
    script, reply, found = FOLDERS[folder]
    island.sh(script)
    environ = {**island.login(FIRST), "XDG_STATE_HOME": "/run/s"}
    for words in (("get", "--for", "1h"), ("run", "--", "true"), ("add", "--", "true")):
        done = island.run(FIRST, gpulease(*words), **environ)
        assert done.returncode in (1, 69)
        assert "Traceback" not in done.stderr
        assert reply in done.stderr
        assert "/run/s" in done.stderr
        assert "gpulease doctor" not in done.stderr
    doctor = island.run(FIRST, gpulease("doctor"), COLUMNS="500", **environ)
    assert "cannot start" in doctor.stdout
    assert found in doctor.stdout


def test_a_home_that_is_not_there_is_named(island: Island) -> None:
    environ = {**island.login(FIRST), "HOME": "/nonexistent"}
    done = island.run(FIRST, gpulease("run", "--", "true"), **environ)
    assert done.returncode == 69
    assert "/nonexistent/.local/state/gpulease" in done.stderr
    assert "XDG_STATE_HOME" in done.stderr
    doctor = island.run(FIRST, gpulease("doctor"), COLUMNS="500", **environ)
    assert doctor.returncode == 69
    assert "cannot start: / cannot be written to" in doctor.stdout
    assert "XDG_STATE_HOME" in doctor.stdout
