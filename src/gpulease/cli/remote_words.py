"""PURE: the words of a command line that say where it is done: `--host`, `--engine`, and ids as `gpu3:12`.

They are taken out before the verb sees its own options. What belongs to the command of a `run` or an `add` stays.
"""

from __future__ import annotations

from gpulease.cli.parsing import REMAINDER, Irregular, Options
from gpulease.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WHERE = ("--host", "--engine")
NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.@")
# Verbs whose loose words are jobs, leases or devices, and may have a host before them.
OF_IDS = (
    "ls", "show", "log", "wait", "kill", "rm", "pause", "resume", "move", "start", "retry", "edit", "clean", "debug",
    "explain", "release", "renew", "exclude", "include",
)  # fmt: skip


class Words:
    """A command line taken apart: its verb, where it is done, and the rest."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.where: dict[str, str] = {}  # option -> value
        self.groups: list[list[str]] = []  # the verb's options, each with its value
        self.loose: list[str] = []  # ids, or the one thing that the verb is about
        self.command: list[str] = []  # a command, and whatever follows `--`, with it
        self.folder: str | None = None  # that --cwd names, on the host where it is done

    @property
    def options(self) -> list[str]:
        return [word for group in self.groups for word in group]


def take_apart(words: list[str], flags: dict[str, dict[str, Any]], verb: str, has_command: bool) -> Words:
    """`words` are those behind the verb; `flags` are the verb's own options, which come first."""
    found = Words(verb)
    rest = words[::-1]
    while rest:
        word = rest.pop()
        name, equals, value = word.partition("=")
        if word == "--" or (has_command and not word.startswith("-")):
            found.command = [word, *reversed(rest)]
            break
        if name in WHERE and name not in flags:
            found.where[name] = _value(name, value if equals else None, rest)
        elif not word.startswith("-"):
            found.loose.append(word)
        else:
            takes = not equals and _has_value(flags.get(word), rest)
            found.groups.append([word, rest.pop()] if takes else [word])
    return found


def _value(name: str, given: str | None, rest: list[str]) -> str:
    if given is None:
        given = rest.pop() if rest and not rest[-1].startswith("-") else ""
    if not given:
        raise UsageError(f"{name} has no value.", f"Write it as {name} {'gpu3' if name == '--host' else 'slurm'}.")
    return given


def _has_value(about: dict[str, Any] | None, rest: list[str]) -> bool:
    if about is None or about.get("action") == "store_true" or not rest:
        return False
    return about.get("nargs") != "?" or not rest[-1].startswith("-")


def flags_of(configure: Any) -> tuple[dict[str, dict[str, Any]], bool]:
    """The options that a verb declares, and whether a command may follow them."""
    options = Options()
    try:
        configure(options)
    except Irregular:  # what only argparse understands comes after the plain options, if at all
        pass
    positional = options.positional
    return options.flags, bool(positional and positional[-1].get("nargs") == REMAINDER)


def by_host(ids: list[str]) -> dict[str | None, list[str]]:
    """Ids with the host that each is on, None being here: `gpu1:3,5 gpu2:5-9` is `{"gpu1": ["3,5"], "gpu2": ["5-9"]}`.

    Behind a comma the host that stands before it goes on.
    """
    found: dict[str | None, list[str]] = {}
    for word in ids:
        host: str | None = None
        parts: dict[str | None, list[str]] = {}
        for part in word.split(","):
            named, colon, id = part.partition(":")
            if colon and is_host(named):
                host, part = named, id
            parts.setdefault(host, []).append(part)
        for where, those in parts.items():
            found.setdefault(where, []).append(",".join(those))
    return found


def is_host(name: str) -> bool:
    """Whether it can be the name of a host; `0` in `0:1` is a GPU with MIG instances."""
    return bool(name) and not name.isdecimal() and name[0] not in "-." and NAME.issuperset(name)
