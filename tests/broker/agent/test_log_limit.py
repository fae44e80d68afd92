"""The oldest output goes, the newest stays, and whoever writes goes on writing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulease.broker.agent import files
from gpulease.broker.agent.files import cut_log

LINES = b"".join(b"line %06d\n" % number for number in range(20_000))


@pytest.mark.parametrize("collapse", [True, False])
def test_a_long_log_keeps_its_end_and_says_so(tmp_path: Path, collapse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not collapse:  # as on a file system that cannot do it
        monkeypatch.setattr(files, "COLLAPSE_RANGE", 0x7F)
    log = tmp_path / "log"
    log.write_bytes(LINES)
    writer = os.open(log, os.O_WRONLY | os.O_APPEND)
    assert cut_log(str(log), 100_000)
    os.write(writer, b"after\n")
    os.close(writer)
    kept = log.read_bytes()
    assert len(kept) <= 100_000
    assert kept.startswith(b"[gpulease: the oldest output was cut")
    assert kept.endswith(b"line 019999\nafter\n")
    rest = kept[kept.index(b"\n") + 1 :]
    assert rest[rest.index(b"\n") + 1 : -6] in LINES


@pytest.mark.parametrize("size", [0, 99_999, 100_000])
def test_a_log_within_its_limit_is_left_alone(tmp_path: Path, size: int) -> None:
    log = tmp_path / "log"
    log.write_bytes(LINES[:size])
    assert not cut_log(str(log), 100_000)
    assert log.read_bytes() == LINES[:size]


@pytest.mark.parametrize("limit", [0, 1, 60, 100])
def test_a_tiny_limit_harms_nothing(tmp_path: Path, limit: int) -> None:
    log = tmp_path / "log"
    log.write_bytes(LINES)
    assert cut_log(str(log), limit)
    assert len(log.read_bytes()) < 10_000


def test_what_is_no_plain_file_is_not_touched(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert not cut_log(str(tmp_path / "pipe"), 0)
    assert not cut_log(str(tmp_path / "none"), 0)
    assert not cut_log("/dev/null", 0)
