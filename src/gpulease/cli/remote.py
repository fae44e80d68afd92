"""Where a command is done, if not by the broker of this machine: `--host gpu3`, `--engine slurm`, ids as `gpu3:12`.

It is loaded only when a word of the command line says so.

They are taken out before the verb sees its own options. What belongs to the command of a `run` or an `add` stays.
"""

from __future__ import annotations

import os

from gpulease.cli.parsing import REMAINDER, Irregular, Options
from gpulease.errors import UsageError
from gpulease.system import places

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


# -------------------------------------------------------------------- where it is done

OPTIONS_OF_IDS = {
    "add": ("--after", "--after-any"),
    "edit": ("--after", "--after-any"),
    "events": ("--job",),
}  # by verb
HELD_BY = {"--for", "--until-released", "--owner", "--help", "-h"}  # of `get`


def go(words: list[str]) -> int | list[str]:
    """Do it there, and give its exit code; or the words that are left for this machine, or for an engine."""
    from gpulease.cli.main import ALIASES, VERBS, load

    leading: list[str] = []
    while words and words[0].partition("=")[0] in WHERE:
        taken = 1 if "=" in words[0] else 2
        leading, words = [*leading, *words[:taken]], words[taken:]
    verb = "status" if not words or words[0].startswith("-") else ALIASES.get(words[0], words[0])
    if verb not in VERBS:
        return words
    rest = words[1:] if words and not words[0].startswith("-") else words
    flags, has_command = flags_of(load(verb).configure)
    found = take_apart([*leading, *rest], flags, verb, has_command)
    if "--engine" in found.where:
        if "--host" in found.where:
            raise UsageError("--host and --engine were both given.", "Leave one of the two out.")
        os.environ["GPULEASE_ENGINE"] = found.where["--engine"]
    # On an engine `node1:0` is a device of its own.
    hosts = by_host(found.loose) if verb in OF_IDS and places.engine(os.environ) == places.LOCAL else {}
    _follow(found, hosts)
    if "--host" not in found.where and not set(hosts) - {None}:
        return [verb, *found.options, *found.loose, *found.command] if found.where else [verb, *rest]
    return _there(found, hosts)


def _follow(found: Words, hosts: dict[str | None, list[str]]) -> None:
    """An option may name jobs too: one that comes after `gpu3:12` is one of gpu3's."""
    for group in found.groups:
        named = by_host(group[1:]) if group[0] in OPTIONS_OF_IDS.get(found.verb, ()) else {}
        if not set(named) - {None}:
            continue
        (host, ids), *_ = named.items()
        elsewhere = {*named, *hosts, found.where.get("--host", host)} - {host, "any"}
        if elsewhere or host is None:
            raise UsageError(f"{group[0]} names jobs of another host.", "Name jobs of one host only.")
        group[1:] = [",".join(ids)]
        if not hosts:
            found.where["--host"] = host


def _there(found: Words, hosts: dict[str | None, list[str]]) -> int:
    """On one host with the terminal, on several side by side."""
    _name_folder(found)
    named = found.where.get("--host")
    if named is not None and set(hosts) - {None}:
        raise UsageError("A host was given with --host and with an id too.", "Leave one of the two out.")
    if named is not None and (named == "any" or "," in named):
        from gpulease.cli.ssh import run_anywhere

        return run_anywhere(found)
    if found.verb == "get" and not HELD_BY & {group[0].partition("=")[0] for group in found.groups}:
        raise UsageError(
            "`get` holds GPUs for the script that asks, and that is not on the other host.",
            "Say for how long, as --for 4h; or --until-released, or --owner with a process there.",
        )
    if named is not None:
        hosts = {named: found.loose}
    if len(hosts) > 1:
        from gpulease.cli.ssh import run_on_all

        return run_on_all(found, hosts)
    from gpulease.cli.ssh import run_there

    (host, ids), *_ = hosts.items()
    prefix = f"{host}:" if found.verb == "add" else ""
    return run_there(str(host), found.verb, [*found.options, *ids, *found.command], prefix, found.folder)


def _name_folder(found: Words) -> None:
    """--cwd is a folder there, which need not be here; one that is relative is so to this one."""
    from gpulease.api.job_commands import full_path

    for group in found.groups if found.verb in ("add", "run", "shell") else ():
        name, equals, value = group[0].partition("=")
        value = value if equals else "".join(group[1:2])
        if name == "--cwd" and value:
            found.folder = full_path(value)
            group[:] = [name, found.folder]
