"""The command blocks of a page, and how they are run: one after the other in one folder, on simulated GPUs.

A block that cannot run has a comment right above it, which readers do not see: `<!-- not run: needs Docker -->`.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from support.site import Site

RUN = ("sh", "bash", "python")
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!-- not run: ((?:(?!-->).)+) -->\s*\Z", re.DOTALL)
# What a test must never type by itself: it may be root's, and a page may come from anybody.
REFUSED = re.compile(
    r"\b(?:sudo|su|apt|apt-get|dnf|systemctl|loginctl|useradd|usermod|groupadd|docker|podman|pip|pipx|uv|conda|ssh|scp"
    r"|rsync|curl|wget|make|mount|nginx|crontab|reboot|git)\b|--system|broker --shared|slurm-config|--hosts?\b|--engine"
    r"|gpulease (?:un)?install|as root|\w+://|mailto:"
    r"|(?<![\w.~])/(?:etc|opt|usr|var|root|home|run|srv|data)\b"
)
LONGEST = 60.0  # seconds that a block may take
OF_THE_READER = re.compile(r"[\w-]+\.(?:py|sh)\b")  # programs: they do nothing
# `python` is ours, but for modules that the reader has; `torchrun` does nothing.
PROGRAMS = {
    "gpulease": '#!/bin/sh\nexec {} -m gpulease "$@"\n',
    "python": '#!/bin/sh\ncase "$1 $2" in "-m gpulease"*) ;; -m*) exit ;; esac\nexec {} "$@"\n',
    "torchrun": "#!/bin/sh\n",
}
PROGRAMS["python3"] = PROGRAMS["python"]


class Block(NamedTuple):
    line: int
    kind: str
    text: str
    not_run: str  # why


def blocks(markdown: str) -> Iterator[Block]:
    for found in FENCE.finditer(markdown):
        if found[2] in RUN:
            reason = COMMENT.search(markdown[: found.start()])
            lines = [line.removeprefix(found[1]) for line in found[3].splitlines(keepends=True)]
            line = markdown.count("\n", 0, found.start()) + 1
            yield Block(line, found[2], "".join(lines), reason[1] if reason else "")


class Reader:
    """Somebody who types what a page says, in a home of their own."""

    def __init__(self, site: Site) -> None:
        self.site, self.home = site, site.folder / "home"
        programs = self.home / "bin"
        programs.mkdir(parents=True)
        for name, text in PROGRAMS.items():
            (programs / name).write_text(text.format(shlex.quote(sys.executable)))
            (programs / name).chmod(0o755)
        self.environ = {**site.environ, "HOME": str(self.home), "PATH": f"{programs}:{site.environ['PATH']}"}

    def type(self, block: Block) -> str:
        """What went wrong; nothing if nothing did."""
        if (found := REFUSED.search(block.text)) is not None:
            return f"line {block.line}: a test does not type {found[0]!r}. Put <!-- not run: the reason --> above it."
        for name in OF_THE_READER.findall(block.text):
            if block.kind != "python" and not (path := self.home / name).exists():
                path.write_text("#!/bin/sh\n")
                path.chmod(0o755)
        words = ["bash", "-ec", block.text]
        if block.kind == "python":
            words = [sys.executable, "-c", f"import gpulease\n{block.text}"]
        log = self.home / "typed.log"  # not a pipe: what a block leaves in the background may keep that open
        with log.open("w") as output:
            try:
                done = subprocess.run(
                    words,
                    cwd=self.home,
                    env=self.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=LONGEST,
                )
            except subprocess.TimeoutExpired:
                return f"line {block.line}: it did not end within {LONGEST:g} s"
        return f"line {block.line}: exit code {done.returncode}: {log.read_text()[-1000:]}" if done.returncode else ""
