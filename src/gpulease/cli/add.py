"""`gpulease add`: queue a job, or many, and print the ids."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

from gpulease.cli.parsing import add_command
from gpulease.cli.requests import add_request, request_fields
from gpulease.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXAMPLES = """\
The job gets this environment and folder, its GPUs in CUDA_VISIBLE_DEVICES, and
GPULEASE_JOB and GPULEASE_DEVICES.

examples:
  gpulease add -- python train.py --lr 0.1
  gpulease add -n 2 --retry 3 --time-limit 4h -- python train.py
  gpulease add --mem 6G -- python small.py         several on one GPU
  gpulease add --after 12,13 -- python evaluate.py
  gpulease add --file jobs.txt                     a command a line
  gpulease add --sweep lr=0.1,0.01 --sweep seed=1:5 -- \\
      python train.py --lr {lr} --seed {seed}      ten jobs
"""
# Letters that mean nothing to a shell's quoting: such a line is split twenty times as fast.
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \t-_=+./,:;@%^~!?*()[]{}<>|&$#")
PART = 400_000  # characters of commands in one message


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_request(parser, "how long it will probably run", waits=False)
    parser.add_argument("--exclusive", action="store_true", help="whole GPUs (the default; not with --mem)")
    parser.add_argument("--name-job", metavar="NAME", help="a name, shown in `gpulease ls`")
    parser.add_argument("--label", help="a label, to choose several jobs by")
    parser.add_argument("--log", "--logpath", metavar="PATH", help="where its output goes; a folder gets ID.log")
    parser.add_argument("--cwd", metavar="PATH", help="the folder to run in (default: this one)")
    parser.add_argument("--env", action="append", default=[], metavar="K=V", help="one more variable; may be repeated")
    parser.add_argument("--retry", type=int, default=0, metavar="N", help="run again up to N times if it fails")
    parser.add_argument("--time-limit", metavar="TIME", help="kill it after so long, as 4h")
    parser.add_argument("--after", metavar="IDS", help="start after these are complete, as 3,4")
    parser.add_argument("--after-any", metavar="IDS", help="start after these have ended, however")
    parser.add_argument("--at", metavar="TIME", help="not before: 22:30, 2026-12-24T22:30, or in 2h")
    parser.add_argument("--hold", action="store_true", help="queue it but do not let it start (see `resume`)")
    parser.add_argument("--file", metavar="PATH", help="queue each line of a file; `-` is the standard input")
    parser.add_argument(
        "--sweep", action="append", default=[], metavar="K=VALUES", help="a job for each of 1,2,3 or 1:5"
    )
    add_command(parser)


def run(arguments: Namespace) -> int:
    commands = _commands(arguments)
    request = request_fields(arguments)
    if arguments.exclusive and arguments.mem:
        raise UsageError("--exclusive and --mem were both given.", "Leave one of the two out.")
    if arguments.at is not None:
        request["not_before"] = moment(arguments.at)
    done = _send(commands, request, _options(arguments))
    print("\n".join(map(str, range(done["first"], done["last"] + 1))))
    return 0


def _send(commands: list[list[str]], request: dict[str, Any], options: dict[str, Any]) -> Any:
    """In parts that fit a message; the last one queues all of them in one commit.

    The token lets it be sent again when the broker ended before it answered, and be queued once.
    """
    from gpulease.client import Client, again

    *parts, last = _parts(commands)
    token = os.urandom(8).hex()
    client = Client()
    while True:
        try:
            for part in parts:
                client.ask("add", request={}, options={}, commands=part, more=True)
            return client.ask("add", request=request, options=options, commands=last, token=token)
        except ConnectionError:
            client = again(client)


def _parts(commands: list[list[str]]) -> list[list[list[str]]]:
    parts: list[list[list[str]]] = [[]]
    size = 0
    for words in commands:
        length = sum(map(len, words)) + 8 * len(words)
        if parts[-1] and size + length > PART:
            parts.append([])
            size = 0
        parts[-1].append(words)
        size += length
    return parts


def _options(arguments: Namespace) -> dict[str, Any]:
    from gpulease.quantities import parse_seconds

    if arguments.after and arguments.after_any:
        raise UsageError("--after and --after-any were both given.", "Leave one of the two out.")
    cwd = os.path.abspath(arguments.cwd or ".")
    if not os.path.isdir(cwd):
        raise UsageError(f"The folder {cwd!r} does not exist.", "Give one that does, with --cwd.")
    options = {
        "cwd": cwd,
        "environment": {**own_environment(), **_variables(arguments.env)},
        "name": arguments.name_job,
        "label": arguments.label,
        "note": arguments.note,
        "log": _log(arguments.log),
        "retry": arguments.retry,
        "time_limit": None if arguments.time_limit is None else parse_seconds(arguments.time_limit),
        "after": ids(arguments.after or arguments.after_any),
        "after_any": bool(arguments.after_any),
        "hold": arguments.hold,
    }
    return {name: value for name, value in options.items() if value is not None and value != [] and value is not False}


def own_environment() -> dict[str, str]:
    """What a job gets of its submitter: the variables, and the mode of the files that it makes."""
    mask = os.umask(0o077)
    os.umask(mask)
    return {**os.environ, "GPULEASE_UMASK": f"{mask:03o}"}


def _log(path: str | None) -> str | None:
    if path is None:
        return None
    full = os.path.abspath(path) + ("/" if path.endswith("/") or os.path.isdir(path) else "")
    folder = full if full.endswith("/") else os.path.dirname(full)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"The log cannot be written to {path!r}.", "Name a file in a folder that you may write in.")
    return full


def _variables(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--env {pair[:40]!r} is not a variable.", "Write it as --env NAME=VALUE.")
        found[name] = value
    return found


def ids(text: str | None) -> list[int]:
    words = [] if text is None else [word.removeprefix("J") for word in text.split(",") if word]
    for word in words:
        if not word.isdecimal() or len(word) >= 20:
            raise UsageError(f"{word[:40]!r} is no job id.", "Write ids, as --after 3,4.")
    return [int(word) for word in words]


def _commands(arguments: Namespace) -> list[list[str]]:
    if arguments.file is not None:
        if arguments.command or arguments.sweep:
            raise UsageError("--file has the commands, and others were given too.", "Leave one of the two out.")
        return _from_file(arguments.file)
    if not arguments.command:
        raise UsageError("No command was given.", "Write it behind `--`, as in `gpulease add -- python train.py`.")
    if not arguments.sweep:
        return [arguments.command]
    from gpulease.cli.sweeps import sweep

    return sweep(arguments.command, arguments.sweep)


def _from_file(path: str) -> list[list[str]]:
    import shlex
    import sys

    try:
        text = sys.stdin.read() if path == "-" else open(path).read()  # noqa: SIM115  # read whole, and gone
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The file {path!r} cannot be read: {error}.", "Check its name.") from None
    commands = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            words = line.split() if PLAIN.issuperset(line) else shlex.split(line)
        except ValueError as error:
            raise UsageError(
                f"Line {number} of {path!r} is no command ({error}): {line[:60]!r}.",
                "Nothing was queued; mend that line.",
            ) from None
        commands.append(words)
    if not commands:
        raise UsageError(f"The file {path!r} has no command in it.", "Write one command a line.")
    return commands


def moment(text: str) -> float:
    """A time of day, a date and time, or `in 2h`, as Unix seconds."""
    import time

    from gpulease.quantities import parse_seconds

    if text.startswith("in "):
        return time.time() + parse_seconds(text[3:])
    for form in ("%H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%d"):
        try:
            parsed = time.strptime(text, form)
        except ValueError:
            continue
        if form != "%H:%M":
            return time.mktime(parsed)
        today = time.localtime()
        moment = time.mktime((*today[:3], parsed.tm_hour, parsed.tm_min, 0, 0, 0, -1))
        return moment if moment > time.time() else moment + 86400
    raise UsageError(f"{text[:40]!r} is no time.", "Write 22:30, 2026-12-24T22:30 or 'in 2h'.")
