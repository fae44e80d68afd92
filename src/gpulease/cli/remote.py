"""Where a command is done, if not by the broker of this machine: `--host gpu3`, `--engine slurm`, ids as `gpu3:12`.

It is loaded only when a word of the command line says so.
"""

from __future__ import annotations

import os

from gpulease.cli.remote_words import OF_IDS, WHERE, Words, by_host, flags_of, take_apart
from gpulease.errors import UsageError
from gpulease.system import places

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
        from gpulease.cli.any_host import run_anywhere

        return run_anywhere(found)
    if found.verb == "get" and not HELD_BY & {group[0].partition("=")[0] for group in found.groups}:
        raise UsageError(
            "`get` holds GPUs for the script that asks, and that is not on the other host.",
            "Say for how long, as --for 4h; or --until-released, or --owner with a process there.",
        )
    if named is not None:
        hosts = {named: found.loose}
    if len(hosts) > 1:
        from gpulease.cli.several_hosts import run_on_all

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
