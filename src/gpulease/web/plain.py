"""The page as text, for `curl`: what `gpulease status` prints, 80 columns wide, and of several hosts their table."""

from __future__ import annotations

from io import StringIO

from gpulease.render.hosts import status_lines
from gpulease.render.status import lines
from gpulease.render.terminal import Terminal
from gpulease.web.picture import PagePicture


def status_text(picture: PagePicture, now: float) -> str:
    terminal = Terminal(StringIO())
    terminal.unicode, terminal.width = True, 80
    shown = lines(picture.document(), terminal, now) if picture.status else []
    if picture.hosts:
        shown += [*([""] if shown else []), *status_lines(picture.hosts, terminal, now)]
    return "\n".join([*shown, *([picture.trouble] if picture.trouble else [])]) + "\n"
