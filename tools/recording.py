"""The recording in the README: two users and one simulated GPU, typed into two real terminals, as an animated SVG.

    python tools/recording.py [FILE] [--quick]      as root, with tmux; `--quick` types without pauses, for the test

A system broker, two accounts and all commands are real. tmux shows what each terminal has on its screen; a row that
is on the screen for some time is one <text> of the picture, with a CSS animation that shows it for that time.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import subprocess
import time
from collections.abc import Callable
from html import escape
from typing import NamedTuple

from support.accounts import SystemSite
from support.users import becoming, shared_cache
from top_picture import BACK, CELL, FRONT, LINE

PICTURE = ROOT / "docs" / "pictures" / "recording.svg"
COLUMNS, ROWS = 92, 6  # of each terminal: as wide as a README is shown
SECONDS = 20.0
PATIENCE = 30.0
PROMPT = "{}@lab:~$"
USERS = {"alice": "#98c379", "bob": "#56b6c2"}
TITLE = "Two users of a server with one (simulated) GPU"
STORY = (
    "alice trains on the only GPU. bob's gpulease run waits, and says why and until when. "
    "alice's training is killed with kill -9, and bob's command starts at once."
)
PROGRAMS = {
    "train.py": "import time; time.sleep(600)",
    "eval.py": "import os, time; print('eval.py runs on GPU', os.environ['GPULEASE_DEVICES']); time.sleep(600)",
}
PAD, HEAD = 14, 30  # pixels around a terminal, and of the bar above it


class Shown(NamedTuple):
    """A row of a terminal, and how long it was there."""

    user: str
    row: int
    text: str
    begin: float
    end: float


class Stage:
    """A server with one GPU, two users, a terminal for each, and all that was seen on them."""

    def __init__(self, quick: bool) -> None:
        self.site, self.quick = SystemSite(1), quick
        self.shown: list[Shown] = []
        self.screens: dict[str, list[tuple[str, float]]] = {user: [("", 0.0)] * ROWS for user in USERS}
        self.socket = str(self.site.folder / "tmux")
        self.began = 0.0

    def open(self) -> None:
        self.site.start_broker()
        programs = self.site.folder / "bin"
        programs.mkdir()
        for name in ("gpulease", "python"):
            (programs / name).write_text(
                f'#!/bin/sh\nexec {self.site.python_of_all} {"-m gpulease" if name == "gpulease" else ""} "$@"\n'
            )
            (programs / name).chmod(0o755)
        for user in USERS:
            self._open_terminal(user, str(programs))
        self.until(lambda: all("$" in self.text(user) for user in USERS))
        self.began = time.monotonic()

    def _open_terminal(self, user: str, programs: str) -> None:
        account = self.site.accounts.users[user]
        for name, text in PROGRAMS.items():
            Path(account.pw_dir, name).write_text(text)
        environ = {
            "HOME": account.pw_dir,
            "PATH": f"{programs}:/usr/bin:/bin",
            "PS1": f"{PROMPT.format(user)} ",
            "LC_ALL": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "TERM": "dumb",  # what `run` says while it waits stays on the screen, and is not cut at its edge
            "XDG_CACHE_HOME": shared_cache(self.site),
        }
        shell = [
            "env",
            "--chdir",
            account.pw_dir,
            *(f"{name}={value}" for name, value in environ.items()),
            "bash",
            "--norc",
            "--noprofile",
        ]
        words = self.site.namespace.words(*becoming(account.pw_uid), *shell)
        size = ["-x", str(COLUMNS), "-y", str(ROWS)]
        self._tmux("-f", "/dev/null", "new-session", "-d", "-s", user, *size, *words)

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self.socket, *words], env=self.site.environ, capture_output=True, text=True, check=True
        )
        return done.stdout

    def text(self, user: str) -> str:
        return self._tmux("capture-pane", "-p", "-t", user)

    # ---------------------------------------------------------------- acting

    def type(self, user: str, text: str) -> None:
        """As a person does, some letters at a time."""
        for letters in [text] if self.quick else re.findall(r".{1,2}", text):
            self._tmux("send-keys", "-t", user, "-l", "--", letters)
            self.watch(0.05)
        self.watch(0.3)
        self._tmux("send-keys", "-t", user, "Enter")

    def until(self, true: Callable[[], object]) -> None:
        limit = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < limit, "\n".join(map(self.text, USERS))
            self.watch(0.05)

    def watch(self, seconds: float) -> None:
        limit = time.monotonic() + (min(seconds, 0.2) if self.quick else seconds)
        while True:
            now = time.monotonic() - self.began if self.began else 0.0
            for user in USERS if self.began else ():
                self._see(user, self.text(user).splitlines(), now)
            if (left := limit - time.monotonic()) <= 0:
                return
            time.sleep(min(left, 0.04))

    def _see(self, user: str, rows: list[str], now: float) -> None:
        before = self.screens[user]
        for row, text in enumerate([*rows, *[""] * ROWS][:ROWS]):
            old, since = before[row]
            if text.rstrip() != old:
                self.shown += [Shown(user, row, old, since, now)] if old else []
                before[row] = (text.rstrip(), now)

    def close(self) -> None:
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], capture_output=True)
        self.site.close()

    def seen(self) -> list[Shown]:
        """The rows that are there at the end stay to the end."""
        last = time.monotonic() - self.began
        rest = [
            Shown(user, row, text, since, last)
            for user, rows in self.screens.items()
            for row, (text, since) in enumerate(rows)
            if text
        ]
        return self.shown + rest


def play(stage: Stage) -> None:
    stage.watch(0.8)
    stage.type("alice", "gpulease run --for 2h -- python train.py &")
    stage.until(lambda: stage.site.status()["leases"])
    stage.watch(0.8)
    stage.type("bob", "gpulease run -- python eval.py")
    stage.until(lambda: "likely in" in stage.text("bob"))
    stage.watch(6.5)
    job = re.search(r"\[1\] (\d+)", stage.text("alice"))
    assert job is not None
    stage.type("alice", f"kill -9 {job[1]}")
    stage.until(lambda: "eval.py runs" in stage.text("bob"))
    stage.watch(1.2)
    stage.type("alice", "")  # the shell tells of the end of a job before its next prompt
    stage.until(lambda: "Killed" in stage.text("alice"))
    stage.watch(SECONDS - (time.monotonic() - stage.began))


def picture(seen: list[Shown]) -> str:
    """The last moment is the still: for readers who want no motion, and where CSS is not animated."""
    end = max(row.end for row in seen)
    width, height = COLUMNS * CELL + 2 * PAD, len(USERS) * (HEAD + ROWS * LINE + PAD) + PAD
    times = sorted({(row.begin, row.end) for row in seen})
    names = {interval: f"t{number}" for number, interval in enumerate(times)}
    moving = "".join(f"@keyframes {name}{{{keyframes(*span, end)}}}.{name}{{animation-name:{name}}}"
                     for span, name in names.items())  # fmt: skip
    style = (
        f"text{{fill:{FRONT};white-space:pre}}.d{{fill:#8b93a1;font-size:12px}}.h{{visibility:hidden}}"
        f"@media (prefers-reduced-motion:no-preference){{.r{{animation:{end:.1f}s step-end infinite}}{moving}}}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img"'
        f' aria-labelledby="title story" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14">',
        f'<title id="title">{escape(TITLE)}</title><desc id="story">{escape(STORY)}</desc><style>{style}</style>',
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{BACK}"/>',
    ]
    for number, (user, colour) in enumerate(USERS.items()):
        top = PAD + number * (HEAD + ROWS * LINE + PAD)
        parts.append(f'<rect x="{PAD / 2}" y="{top}" width="{width - PAD:g}" height="22" rx="4" fill="#2a2e37"/>')
        parts.append(f'<text x="{PAD}" y="{top + 16}" style="fill:{colour}" font-weight="bold">{user}</text>')
        if not number:
            parts.append(f'<text x="{width - PAD:g}" y="{top + 16}" text-anchor="end" class="d">{escape(TITLE)}</text>')
        for row in (row for row in seen if row.user == user):
            still = "" if row.end == end else " h"
            x, y = PAD, top + HEAD + row.row * LINE + 13
            rest = row.text.removeprefix(prompt := PROMPT.format(user))
            prefix = "" if rest == row.text else f'<tspan style="fill:{colour}">{prompt}</tspan>'
            parts.append(
                f'<text class="r {names[row.begin, row.end]}{still}" x="{x}" y="{y}" xml:space="preserve"'
                f' textLength="{len(row.text) * CELL:g}">{prefix}{escape(rest)}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def keyframes(begin: float, end: float, whole: float) -> str:
    hidden, shown = "visibility:hidden", "visibility:visible"
    first = f"0%{{{hidden}}}" if begin else ""
    last = f"{100 * end / whole:.2f}%{{{hidden}}}" if end < whole else f"to{{{shown}}}"
    return f"{first}{100 * begin / whole:.2f}%{{{shown}}}{last}"


def main(path: Path, quick: bool) -> None:
    stage = Stage(quick)
    try:
        stage.open()
        play(stage)
        text = picture(stage.seen())
    finally:
        stage.close()
    path.write_text(text, encoding="utf-8")
    print(path)


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if word != "--quick"]
    main(Path(given[0]) if given else PICTURE, "--quick" in sys.argv)
