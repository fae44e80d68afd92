"""Whether a command starts a container that would see GPUs beside those of its lease."""

from __future__ import annotations

import sys
from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

TOOLS = ("docker", "podman", "nerdctl")
INSTEAD = "Use $(gpulease docker-args) in its place: `gpulease help containers`"


def warn_of_all_gpus(commands: Iterable[list[str]]) -> None:
    found = next(filter(None, map(gpus_beside, commands)), None)
    if found is not None:
        said = f"gpulease: with `{found}` the container sees GPUs that are not of its lease. {INSTEAD}."
        print(said, file=sys.stderr, flush=True)


def gpus_beside(command: list[str]) -> str | None:
    """The option that names other GPUs than a lease can: all, or the first so many. Also inside a shell's text."""
    text = " ".join(command)
    if not any(tool in text for tool in TOOLS) or "gpu" not in text:
        return None
    words = text.translate({ord(letter): " " for letter in "=\"'"}).split()
    for option, value in pairwise(words):
        if option == "--gpus" and (value == "all" or value.isdecimal()):
            return f"--gpus {value}"
        if option.endswith("nvidia.com/gpu") and value == "all":
            return f"--device {option}={value}"
    return None
