"""A terminal of a test's own, by tmux: what it shows, keys that are pressed, another size."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator

import pytest

from support.needs import program
from support.queue_site import QueueSite
from support.site import Site
from support.waiting import PATIENCE, wait_until

SIZES = ((80, 24), (200, 60))


class Tmux:
    """A server of its own with one pane, in which a shell waits for commands."""

    def __init__(self, site: Site, columns: int, rows: int) -> None:
        self._site, self._socket = site, str(site.folder / "tmux")
        environ = {**site.environ, "LC_ALL": "C.UTF-8", "PS1": "$ "}
        size = ["-x", str(columns), "-y", str(rows)]
        shell = ["bash", "--norc", "--noprofile"]
        self._do("-f", "/dev/null", "new-session", "-d", "-s", "a", *size, *shell, environ=environ)
        self.wait("$")

    def _do(self, *words: str, environ: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, *words], env=environ, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, words: list[str], **environ: str) -> None:
        """Type a command."""
        given = [f"{name}={shlex.quote(value)}" for name, value in environ.items()]
        self.type(" ".join([*given, shlex.join(words)]))
        self.press("Enter")

    def top(self, **environ: str) -> None:
        self.run(self._site.words("top"), **environ)
        self.wait("q quit")

    def press(self, *keys: str) -> None:
        """By tmux's names: Enter, Down, Escape, C-c, or a letter."""
        self._do("send-keys", "-t", "a", *keys)

    def type(self, text: str) -> None:
        self._do("send-keys", "-t", "a", "-l", text)

    def resize(self, columns: int, rows: int) -> None:
        self._do("resize-window", "-t", "a", "-x", str(columns), "-y", str(rows))

    def about(self, format: str) -> str:
        return self._do("display-message", "-p", "-t", "a", format).strip()

    def shown(self, escapes: bool = False, joined: bool = False) -> str:
        """`joined`: a line that is longer than the terminal is wide is one line."""
        return self._do("capture-pane", "-p", "-t", "a", *(["-e"] if escapes else []), *(["-J"] if joined else []))

    def wait(self, *texts: str, without: str | None = None) -> str:
        """The screen, once all of `texts` are on it, and `without` is not."""
        seen = ""

        def look() -> str | None:
            nonlocal seen
            seen = self.shown()
            there = all(text in seen for text in texts) and (without is None or without not in seen)
            return seen if there else None

        try:
            return wait_until(look, pause=0.03)
        except AssertionError:
            raise AssertionError(f"no {texts!r} (without {without!r}) on the screen:\n{seen}") from None

    def close(self) -> None:
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], capture_output=True)


@pytest.fixture(name="terminal", params=SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def terminal_of_each_size(request: pytest.FixtureRequest, queue: QueueSite) -> Iterator[Tmux]:
    """At each of the sizes that `top` is made for."""
    yield from opened(queue, *request.param)


@pytest.fixture(name="small")
def small_terminal(queue: QueueSite) -> Iterator[Tmux]:
    yield from opened(queue, *SIZES[0])


def opened(site: Site, columns: int, rows: int) -> Iterator[Tmux]:
    program("tmux")
    tmux = Tmux(site, columns, rows)
    try:
        yield tmux
    finally:
        tmux.close()
