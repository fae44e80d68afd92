"""`gpulease add`: queue a job, or many, and print the ids."""

from __future__ import annotations

import os
import sys
import time

from gpulease.cli.parsing import ArgumentParser, Namespace, add_command
from gpulease.cli.request_options import add_request
from gpulease.errors import UsageError
from gpulease.job_fields import command_words, job_fields, log_path, wrong_with
from gpulease.request_fields import as_option, request_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    Texts = dict[str, str]

EXAMPLES = """\
The job gets this environment and folder, its GPUs in CUDA_VISIBLE_DEVICES, and
GPULEASE_JOB and GPULEASE_DEVICES. A command, also one of --file, is split into
words as a shell would, but no shell runs it: for pipes and $VARIABLES write
sh -c '...'. A sweep fills in --log, --name, --label and --note too.

examples:
  gpulease add -- python train.py --lr 0.1
  gpulease add -n 2 --retry 3 --time-limit 4h -- python train.py
  gpulease add --mem 6G -- python small.py         several on one GPU
  gpulease add --no-env 'WANDB_*' -- python t.py   without these variables
  gpulease add --after 12,15-20 -- python evaluate.py
  gpulease add --after-label sweep1 -- python evaluate.py
  gpulease add --file jobs.txt                     a command a line
  gpulease add --sweep lr=0.1,0.01 --sweep seed=1:5 -- \\
      python train.py --lr {lr} --seed {seed}      ten jobs
"""
# Letters that mean nothing to a shell's quoting: such a line is split twenty times as fast.
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \t-_=+./,:;@%^~!?*()[]{}<>|&$#")
OF_ALL = (
    "visible_by",
    "cwd",
    "retry",
    "time_limit",
    "after",
    "after_any",
    "after_label",
    "after_any_label",
    "hold",
)  # what no job of a sweep has of its own
SHORT = 30_000  # characters of a line whose words cannot be too long


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_request(parser, "how long it will probably run", waits=False)
    parser.add_argument("--exclusive", action="store_true", help="whole GPUs (the default; not with --mem)")
    parser.add_argument("--name", help="a name of the job, shown in `gpulease ls`")
    parser.add_argument("--label", help="a label, to choose several jobs by")
    parser.add_argument("--log", "--logpath", metavar="PATH", help="where its output goes; a folder gets ID.log")
    parser.add_argument("--cwd", metavar="PATH", help="the folder to run in (default: this one)")
    parser.add_argument(
        "--env", action="append", default=[], metavar="K=V", help="one more variable; NAME alone keeps a secret one"
    )
    parser.add_argument(
        "--no-env", action="append", default=[], metavar="NAME", help="leave a variable out, or several, as `AWS_*`"
    )
    parser.add_argument("--retry", type=int, default=0, metavar="N", help="run again up to N times if it fails")
    parser.add_argument("--time-limit", metavar="TIME", help="kill it after so long, as 4h")
    add_after(parser)
    parser.add_argument("--at", metavar="TIME", help="not before: 22:30, 2026-12-24T22:30, or in 2h")
    parser.add_argument("--hold", action="store_true", help="queue it but do not let it start (see `resume`)")
    parser.add_argument(
        "--file", metavar="PATH", help="queue each line of a file, as words, without a shell; `-` is the standard input"
    )
    parser.add_argument(
        "--sweep", action="append", default=[], metavar="K=VALUES", help="a job for each of 1,2,3 or 1:5"
    )
    add_command(parser)


def add_after(parser: ArgumentParser) -> None:
    ids = "as 3,5-9, `last`, or `all` of yours that are not over"
    parser.add_argument("--after", action="once", metavar="IDS", help=f"start after these are complete: {ids}")
    parser.add_argument("--after-any", action="once", metavar="IDS", help="start after these have ended, however")
    parser.add_argument(
        "--after-label", action="once", metavar="LABEL", help="after your jobs of a label that are not over"
    )
    parser.add_argument("--after-any-label", action="once", metavar="LABEL", help="the same, however they end")


def run(arguments: Namespace) -> int:
    from gpulease.queueing import add

    commands, texts, each = _commands_and_texts(arguments)
    if arguments.exclusive and arguments.mem:
        raise UsageError("--exclusive and --mem were both given.", "Leave one of the two out.")
    request = request_fields(vars(arguments), as_option, time.time())
    given = {name: value for name in OF_ALL if (value := getattr(arguments, name)) is not None}
    options = job_fields({**given, "env": _variables(arguments.env), "no_env": arguments.no_env}, as_option)
    done = add(commands, request, {**options, **texts}, each)
    print("\n".join(map(str, range(done["first"], done["last"] + 1))))
    if done["left_out"]:
        left_out = ", ".join(done["left_out"])
        print(
            f"gpulease: the job does not get {left_out}: secret by its name. Keep it with --env NAME.", file=sys.stderr
        )
    return 0


def _variables(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or (not equals and name not in os.environ):
            step = "Write it as --env NAME=VALUE, or NAME of a variable that is set."
            raise UsageError(f"--env {pair[:40]!r} is not a variable.", step)
        found[name] = value if equals else os.environ[name]
    return found


def _commands_and_texts(arguments: Namespace) -> tuple[list[list[str]], Texts, list[Texts]]:
    """The commands, the texts of all of them, and those of each, which a sweep fills in."""
    asked = {"name": arguments.name, "label": arguments.label, "note": arguments.note, "log": arguments.log}
    texts = {name: text for name, text in asked.items() if text is not None}
    if not arguments.sweep:
        return _commands(arguments), _with_log(texts), []
    if arguments.file is not None or not arguments.command:
        _commands(arguments)  # says what is wrong
    from gpulease.cli.sweeps import sweep_all

    made = sweep_all(arguments.command, texts, arguments.sweep)
    for words, _ in made:
        command_words(words)
    if all(filled == texts for _, filled in made):
        return [words for words, _ in made], _with_log(texts), []
    return [words for words, _ in made], {}, [_with_log(filled) for _, filled in made]


def _with_log(texts: Texts) -> Texts:
    log = log_path(texts.get("log"))
    return texts if log is None else {**texts, "log": log}


def _commands(arguments: Namespace) -> list[list[str]]:
    if arguments.file is not None:
        if arguments.command or arguments.sweep:
            raise UsageError("--file has the commands, and others were given too.", "Leave one of the two out.")
        return _from_file(arguments.file)
    if not arguments.command:
        raise UsageError("No command was given.", "Write it behind `--`, as in `gpulease add -- python train.py`.")
    return [command_words(arguments.command)]


def _from_file(path: str) -> list[list[str]]:
    try:
        text = sys.stdin.read() if path == "-" else open(path).read()  # noqa: SIM115  # read whole, and gone
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The file {path!r} cannot be read: {error}.", "Check its name.") from None
    commands = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        words, wrong = _words(line)
        if wrong is not None:
            shown = f"Line {number} of {path!r} is no command: it {wrong}: {line[:60]!r}."
            raise UsageError(shown, "Nothing was queued; mend that line.")
        commands.append(words)
    if not commands:
        raise UsageError(f"The file {path!r} has no command in it.", "Write one command a line.")
    return commands


def _words(line: str) -> tuple[list[str], str | None]:
    """The words of a line, and what is wrong with them."""
    if len(line) < SHORT and PLAIN.issuperset(line):
        return line.split(), None
    import shlex

    try:
        words = shlex.split(line)
    except ValueError as error:
        return [], f"cannot be split into words ({error})"
    return words, wrong_with(words)
