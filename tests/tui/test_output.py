"""The log that `top` shows, as it grows; and what is sent to the terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.top_rows import job

from gpulease.api.log import shown_line
from gpulease.render.terminal import width_of
from gpulease.tui.live_data import Output, wrapped


@given(st.text(), st.integers(1, 40))
def test_a_line_of_a_log_is_safe_and_wrapped_whole(text: str, width: int) -> None:
    shown = shown_line(text)
    assert shown.isprintable()
    assert "".join(wrapped(shown, width)) == shown


def test_of_a_bar_that_is_drawn_over_itself_the_last_is_shown() -> None:
    assert shown_line(" 10%\r 50%\r100%\r") == "100%"
    assert shown_line("\x1b[31mred\x1b[0m \x1b]0;title\x07and") == "red and"


def test_a_log_is_read_as_it_grows_shrinks_and_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "log"
    row = job(log=str(path))
    output = Output(row)
    assert output.grow(row)
    assert output.note == "It has written nothing yet."
    path.write_text("one\ntw")
    assert output.grow(row)
    assert list(output.lines) == ["one", "tw"]
    assert not output.note
    assert not output.grow(row)
    with path.open("a") as file:
        file.write("o\n")
    output.grow(row)
    assert list(output.lines) == ["one", "two"]
    path.write_text("new\n")
    output.grow(row)
    assert list(output.lines) == ["new"]


def test_of_a_huge_log_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast\n")
    row = job(log=str(path))
    output = Output(row)
    output.grow(row)
    assert output.lines[-1] == "last"
    assert sum(map(len, output.lines)) < 10_000


def test_a_log_that_is_not_the_jobs_is_not_shown(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    output = Output(row := job(log=str(tmp_path / "log")))
    output.grow(row)
    assert "not a regular file" in output.note
    output.grow(job(log=""))
    assert output.note == "Its log is hidden from you."
    output.grow(job(runs=0))
    assert output.note == "It has not started yet."


# -------------------------------------------------------------------- drawing

DRAWER = """
import sys, json
from gpulease.tui.screen import Display
display = Display(plain=False, unicode=True)
for lines in json.loads(sys.argv[1]):
    display.draw([[tuple(span) for span in line] for line in lines])
"""
STEP = re.compile(r"\x1b\[(\d+);(\d+)H|\x1b\[(\d*[JKH])|\x1b\(B|\x1b\[[\d;]*m|(.)", re.DOTALL)


def drawn(frames: list[Any], rows: int) -> list[str]:
    """The screen that a terminal has after these frames: what was sent, carried out."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm"}
    subprocess.run(
        [sys.executable, "-c", DRAWER, json.dumps(frames)], stdin=theirs, stdout=theirs, env=environ, check=True
    )
    os.close(theirs)
    sent = b""
    while True:
        try:
            sent += os.read(ours, 1 << 16)
        except OSError:
            break
    os.close(ours)
    screen = [[" "] * 200 for _ in range(rows)]
    row = column = 0
    for found in STEP.finditer(sent.decode()):
        if found[1]:
            row, column = int(found[1]) - 1, int(found[2]) - 1
        elif found[3] and found[3].endswith("J"):
            screen = [[" "] * 200 for _ in range(rows)]
        elif found[3] == "K":
            screen[row][column:] = [" "] * (200 - column)
        elif found[4]:
            wide = width_of(found[4])
            screen[row][column : column + wide] = [found[4], *[""] * (wide - 1)]
            column += wide
    return ["".join(cells).rstrip() for cells in screen]


def test_changes_alone_lead_to_the_whole_frame() -> None:
    frames = [
        [[["GPU 0 ", "bold"], ["busy", "red"]], [["日本 10", ""]], [["gone", ""]]],
        [[["GPU 0 ", "bold"], ["free", "green"]], [["日本 11", ""]], [["", ""]]],
        [[["GPU 0 free, and longer", ""]], [["ab本 11", ""]], [["back", "reverse"]]],
        [[["GPU 1 fre", ""]], [["日 11", ""]], [["back", ""]]],
    ]
    for count in range(1, len(frames) + 1):
        expected = ["".join(text for text, _ in line) for line in frames[count - 1]]
        assert drawn(frames[:count], 3) == expected
