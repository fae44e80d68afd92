"""A shell whose prompt says that it holds GPUs, or that they are simulated.

A shell's own files set its prompt, so a variable would not do: the files in `prompts/` read the user's files
first, and then put GPULEASE_PROMPT before whatever prompt these made.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FILES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "prompts")


def marked_shell(mark: str, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The user's shell as a command, and what it needs in its environment to show `mark`."""
    shell = environ.get("SHELL") or "/bin/sh"
    if not sys.stdin.isatty():
        return [shell], {}
    text = f"{environ.get('GPULEASE_PROMPT', '')}({mark}) "
    changes = {"GPULEASE_PROMPT": text}
    name = os.path.basename(shell)
    if name == "bash":
        return [shell, "--rcfile", os.path.join(FILES, "bash.sh")], changes
    if name == "zsh":
        theirs = environ.get("ZDOTDIR") or environ.get("HOME") or os.path.expanduser("~")
        return [shell], {**changes, "ZDOTDIR": os.path.join(FILES, "zsh"), "GPULEASE_ZDOTDIR": theirs}
    if name == "fish":
        return [shell, "--init-command", f"source '{os.path.join(FILES, 'fish.fish')}'"], changes
    return [shell], {**changes, "PS1": f"{text}{'#' if os.geteuid() == 0 else '$'} "}
