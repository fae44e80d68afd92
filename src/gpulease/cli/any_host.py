"""`add`, `run`, `shell` with `--host any`: each host's planner is asked when it would start; the soonest is taken."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from gpulease.api.job_commands import full_path
from gpulease.cli.commands.add import named_variables, prepare, tell_left_out
from gpulease.cli.parsing import Options, clean, parse
from gpulease.cli.remote import Words
from gpulease.cli.request_options import add_wanted
from gpulease.cli.ssh import run_there
from gpulease.errors import HostUnavailable, NotEnoughDevices, UsageError
from gpulease.hosts import hosts
from gpulease.hosts.choice import HostOffer, spread

if TYPE_CHECKING:
    from typing import Any

    from gpulease.cli.commands.add import Prepared
    from gpulease.hosts.hosts import Answer

ANY = "any"
VERBS = ("add", "run", "shell")
MOST = 64  # alike that a host is asked about
LONG = 60.0  # seconds for a host to queue a batch


def run_anywhere(found: Words) -> int:
    """Where it would start soonest, or where a part of a batch would."""
    if found.verb not in VERBS:
        raise UsageError(
            f"`gpulease {found.verb}` is about one host.", f"Name one; {', '.join(VERBS)} and `status` take several."
        )
    asked = found.where["--host"]
    names = hosts.names(None if asked == ANY else asked)
    batch = _batch(found) if found.verb == "add" else None
    count = 1 if batch is None else len(batch[0])
    candidates = _candidates(names, found, count)
    chosen = spread(candidates, count, _gpus(found))
    if len(set(chosen)) > 1 and batch is not None:
        return _add_to_several(batch, chosen, found)
    host = chosen[0]
    if found.verb != "add":
        print(f"gpulease: on {host}", file=sys.stderr, flush=True)
    prefix = f"{host}:" if found.verb == "add" else ""
    return run_there(host, found.verb, [*found.options, *found.command], prefix, found.folder)


def _candidates(names: list[str], found: Words, count: int) -> list[HostOffer]:
    """The hosts that could serve it. Why one cannot is told; when none can, that is the error."""
    words = ["explain", "--json", f"--count={min(count, MOST)}", *(["--job"] if found.verb == "add" else [])]
    words += [word for group in found.groups if group[0].partition("=")[0] in _request_flags() for word in group]
    if not any(group[0].partition("=")[0] in ("-n", "--gpus") for group in found.groups):
        words.append("--gpus=1")
    program = _program(found)
    folder = found.folder or full_path(".")
    answers = hosts.ask_all(dict.fromkeys(names, words), folder=folder, environ=os.environ, program=program)
    offers = {answer.host: answer.document and HostOffer.of(answer.host, answer.document) for answer in answers}
    candidates = [one for one in offers.values() if one]
    for answer in answers:
        if candidates and answer.trouble is not None:
            print(f"gpulease: {clean(answer.trouble.what)} It is left out.", file=sys.stderr)
    if not candidates:
        raise _nowhere(answers)
    return candidates


def _nowhere(answers: list[Answer]) -> HostUnavailable | NotEnoughDevices:
    reasons = " ".join(
        f"{answer.host}: {answer.document['why']}" if answer.trouble is None else answer.trouble.what
        for answer in answers
    )
    if all(isinstance(answer.trouble, HostUnavailable) for answer in answers):
        return HostUnavailable(f"No host can be used. {reasons}")
    lacking = all(answer.trouble is not None for answer in answers)  # a folder, an environment, a command
    step = "Have it on one of the hosts." if lacking else "Ask for less, or see `gpulease status --hosts`."
    return NotEnoughDevices(f"No host can serve this. {reasons}", step)


def _request_flags() -> set[str]:
    options = Options()
    add_wanted(options, "")
    return {*options.flags}


def _gpus(found: Words) -> int:
    arguments = parse(found.verb, found.options)
    return int(arguments.gpus)


def _program(found: Words) -> str:
    """The command that must be there; of a batch, and of what a shell reads, it is checked when it is queued."""
    options = {group[0].partition("=")[0] for group in found.groups}
    command = [word for word in found.command if word != "--"]
    return "" if options & {"--file", "--sweep", "--shell", "--force"} or not command else command[0]


# ---------------------------------------------------------------------- a batch


def _batch(found: Words) -> Prepared | None:
    """Of several commands that may run on several hosts: a number of them that run at a time is one host's to count."""
    options = {group[0].partition("=")[0] for group in found.groups}
    if not options & {"--file", "--sweep"}:
        return None
    arguments = parse("add", [*found.options, *found.command])
    if arguments.after or arguments.after_any or arguments.after_label or arguments.after_any_label:
        raise UsageError("Jobs come after others of their own host.", "Name that host with --host.")
    if arguments.file == "-":
        raise UsageError("--file - cannot be spread over hosts.", "Write the commands into a file, or name one host.")
    arguments.cwd = None  # it is a folder there
    batch = prepare(arguments)
    batch[3]["cwd"] = found.folder or batch[3]["cwd"]
    return None if arguments.at_most is not None else batch


def _add_to_several(batch: Prepared, chosen: list[str], found: Words) -> int:
    """The ids are printed in the order of the commands. What one host refuses is told; the others keep theirs."""
    commands, _, request, options, each = batch
    arguments = parse("add", [*found.options, *found.command])
    shared = {name: value for name, value in options.items() if name not in ("environment", "env_kept")}
    common = {"request": request, "options": shared, "no_env": arguments.no_env, "force": arguments.force}
    common["env"] = named_variables(arguments.env)
    given = {}
    for host in dict.fromkeys(chosen):
        mine = [place for place, name in enumerate(chosen) if name == host]
        part = {**common, "commands": [commands[place] for place in mine], "token": os.urandom(8).hex()}
        part["each"] = [each[place] for place in mine] if each else []
        given[host] = json.dumps({"batches": [part]})
    answers = _send(given)
    unsure = {host: given[host] for host, one in answers.items() if isinstance(one.trouble, HostUnavailable)}
    return _tell(chosen, {**answers, **_send(unsure)})  # by its token a batch that did arrive is not queued twice


def _send(given: dict[str, str]) -> dict[str, Answer]:
    calls = dict.fromkeys(given, ("add", "--transfer"))
    return {one.host: one for one in hosts.ask_all(calls, LONG, given, environ=os.environ)}


def _tell(chosen: list[str], answers: dict[str, Answer]) -> int:
    ids: dict[str, list[int]] = {}
    code = 0
    for host, answer in answers.items():
        added: dict[str, Any] = {} if answer.trouble else answer.document["added"][0]
        added.setdefault("trouble", answer.trouble and answer.trouble.what)
        if added["trouble"] is not None:
            print(f"gpulease: {host}: {clean(added['trouble'])}", file=sys.stderr)
            code = 1 if answer.trouble is None else answer.trouble.exit_code
        else:
            ids[host] = list(range(added["first"], added["last"] + 1))
            tell_left_out(added["left_out"])
    for host in chosen:
        if host in ids:
            print(f"{host}:{ids[host].pop(0)}")
    return code
