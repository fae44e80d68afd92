"""The end of a log costs no more than the end, whatever is in front of it."""

from __future__ import annotations

from pathlib import Path

from gpulease.api.log import MOST, tail


def test_of_a_line_as_long_as_the_disk_only_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "1.log"
    with open(log, "wb") as file:
        file.truncate(1 << 40)  # a hole: reading all of it would end no test
        file.seek(0, 2)
        file.write(b"\nlast but one\nlast\n")
    found = tail(str(log), 10)
    assert found[-2:] == ["last but one", "last"]
    assert sum(map(len, found)) <= MOST


def test_lines_are_found_however_far_back_they_begin(tmp_path: Path) -> None:
    log = tmp_path / "1.log"
    lines = [f"{number} {'x' * 50_000}" for number in range(12)]
    log.write_text("\n".join(lines) + "\n")
    assert tail(str(log), 10) == lines[-10:]
