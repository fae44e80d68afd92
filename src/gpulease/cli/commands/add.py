"""`gpulease add`: queue a job, or many, and print the ids."""

from __future__ import annotations

import os
import sys
import time

from gpulease.api.job_commands import by_shell, job_fields, refuse_unstartable, swept, with_log
from gpulease.cli.options import add_job, add_request, warn_of_all_gpus
from gpulease.cli.parsing import ArgumentParser, Namespace, add_command
from gpulease.errors import UsageError
from gpulease.model.fields import JOB, OWN, as_option, command_words, request_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from gpulease.protocol.messages import JobId

    Texts = dict[str, str]
    Prepared = tuple[list[list[str]], list[int], dict[str, Any], dict[str, Any], list[Texts]]

EXAMPLES = """\
The job runs in this folder, with the variables of this shell except secrets.
CUDA_VISIBLE_DEVICES shows it its GPUs, and GPULEASE_JOB its id. No shell runs
the command: for pipes and $VARIABLES give --shell. The {names} of a sweep also
work in --log, --name, --label and --note.

examples:
  gpulease add -- python train.py --lr 0.1
  gpulease add -n 2 --retry 3 --time-limit 4h -- python train.py
  gpulease add --mem 6G -- python small.py         share a GPU by memory
  gpulease add --no-env 'WANDB_*' -- python t.py   without these variables
  gpulease add --after 12,15-20 -- python evaluate.py
  gpulease add --after-label sweep1 -- python evaluate.py
  gpulease add -n 0 --after 12 -- python plot.py   a job without a GPU
  gpulease add --shell 'python t.py > out && ./tell'
  gpulease add --notify -- python train.py         notify me when it ends
  gpulease add --file jobs.txt                     one command on each line
  gpulease add --sweep lr=0.1,0.01 --sweep seed=1:5 -- \\
      python train.py --lr {lr} --seed {seed}      ten jobs
  gpulease add --sweep seed=1:100 --at-most 8 -- ./train {seed}
  gpulease add --sweep lr=1e-4:1e-1:x10 -- python train.py --lr {lr}
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_request(parser, "expected run time, as 2h; it is not a limit", waits=False)
    parser.add_argument("--exclusive", action="store_true", help="use whole GPUs (the default; not with --mem)")
    add_job(parser)
    parser.add_argument(
        "--env", action="append", default=[], metavar="K=V", help="set a variable; NAME alone keeps a secret one"
    )
    parser.add_argument(
        "--no-env", action="append", default=[], metavar="NAME", help="leave out a variable, or several, as `AWS_*`"
    )
    parser.add_argument(
        "--file", metavar="PATH", help="queue each line of a file, or of standard input (`-`); `#` starts a comment"
    )
    parser.add_argument("--shell", action="store_true", help="run the command, or each line of --file, with sh -c")
    parser.add_argument("--force", action="store_true", help="queue it even if the command does not exist")
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="K=VALUES",
        help="one job for each value of {K}: 1,2,3, or 1:5, or 0.1:0.5:0.1, or 1:64:x2",
    )
    parser.add_argument(
        "--transfer",
        action="store_true",
        help="used by gpulease itself to move jobs between hosts (JSON on standard input)",
    )
    add_command(parser)


def run(arguments: Namespace) -> int:
    from gpulease.api.jobs import add, ids_of

    if arguments.transfer:
        return _transfer()
    commands, lines, request, options, each = prepare(arguments)
    if not arguments.force:
        refuse_unstartable(commands, options, arguments.file or "", lines, as_option)
    done = add(commands, request, options, each)
    _tell_ids(ids_of(done))
    tell_left_out(done["left_out"])
    warn_of_all_gpus(commands)
    return 0


def _tell_ids(ids: Sequence[JobId]) -> None:
    """What cannot be written there is said elsewhere: the jobs are queued all the same."""
    try:
        print("\n".join(map(str, ids)), flush=True)
    except OSError:
        which = ids[0] if len(ids) == 1 else f"{ids[0]} to {ids[-1]}"
        print(f"gpulease: queued as {which}; that could not be written to the standard output.", file=sys.stderr)
        raise


def tell_left_out(names: list[str]) -> None:
    if names:
        left_out = ", ".join(names)
        print(
            f"gpulease: the job does not get {left_out}: secret by its name. Keep it with --env NAME.", file=sys.stderr
        )


def _transfer() -> int:
    import json

    from gpulease.api.rebalance import LARGEST, received
    from gpulease.cli.parsing import print_json

    try:
        document = json.loads(sys.stdin.read(LARGEST))
    except ValueError:
        raise UsageError("What was sent is not JSON.", "--transfer is for gpulease on another host.") from None
    return print_json(received(document))


def prepare(arguments: Namespace) -> Prepared:
    """What is to be queued: commands, the lines in which they stand, the request, options of all and texts of each."""
    if (arguments.devices or "").startswith("after"):
        raise UsageError("-d names devices here.", "Write --after 12, or --after-any 12 however it ends.")
    if arguments.sweep:
        _take_cap(arguments)
    commands, lines, texts, each = _commands_and_texts(arguments)
    if arguments.exclusive and (arguments.mem or arguments.pack):
        shared = "--mem" if arguments.mem else "--pack"
        raise UsageError(f"--exclusive and {shared} were both given.", "Leave one of the two out.")
    if arguments.at_most is not None and arguments.file is None and not arguments.sweep:
        raise UsageError("--at-most is for jobs that are added together.", "Give it with --sweep or --file.")
    pack = {"pack": False if arguments.exclusive else arguments.pack or None}
    request = request_fields({**vars(arguments), **pack}, as_option, time.time())
    given = {row.name: getattr(arguments, row.name) for row in JOB if row.help and not row.own}
    options = job_fields({**given, "env": named_variables(arguments.env), "no_env": arguments.no_env}, as_option)
    return commands, lines, request, {**options, **texts}, each


def _take_cap(arguments: Namespace) -> None:
    """Slurm's way to say --at-most."""
    from gpulease.model.sweeps import without_caps

    arguments.sweep, caps = without_caps(arguments.sweep)
    if len(caps) + (arguments.at_most is not None) > 1:
        raise UsageError(f"--at-most and %{caps[-1]} were both given.", "Leave one of the two out.")
    arguments.at_most = caps[0] if caps else arguments.at_most


def named_variables(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or (not equals and name not in os.environ):
            step = "Write it as --env NAME=VALUE, or NAME of a variable that is set."
            raise UsageError(f"--env {pair[:40]!r} is not a variable.", step)
        found[name] = value if equals else os.environ[name]
    return found


def _commands_and_texts(arguments: Namespace) -> tuple[list[list[str]], list[int], Texts, list[Texts]]:
    """The commands, the lines in which they stand, the texts of all of them, and those of each of a sweep."""
    texts = {name: text for name in OWN if (text := getattr(arguments, name)) is not None}
    if arguments.file is not None:
        if arguments.sweep:
            step = "Sweep over one command, or write all commands into the file."
            raise UsageError("--file and --sweep do not go together.", step)
        if arguments.command:
            raise UsageError("--file has the commands, and others were given too.", "Leave one of the two out.")
        from gpulease.cli.job_file import read_commands

        return *read_commands(arguments.file, arguments.shell), with_log(texts), []
    if not arguments.command:
        raise UsageError("No command was given.", "Write it behind `--`, as in `gpulease add -- python train.py`.")
    words = _for_shell(arguments.command) if arguments.shell else command_words(arguments.command)
    if not arguments.sweep:
        _tell_unfilled(words)
        return [words], [], with_log(texts), []
    from gpulease.model.sweeps import variables

    commands, texts, each = swept(words, texts, variables(arguments.sweep), arguments.force)
    return commands, [], texts, each


def _tell_unfilled(words: list[str]) -> None:
    """It may be meant so: nothing is refused."""
    if not any("{" in word for word in words):
        return
    from gpulease.model.sweeps import unfilled

    name = unfilled(words, ())
    if name is not None:
        print(f"gpulease: the command gets {{{name[:40]}}} as it is: no --sweep has values for it.", file=sys.stderr)


def _for_shell(words: list[str]) -> list[str]:
    """Joining several would lose the quotes between which they stood."""
    if len(words) > 1:
        step = "Put the whole of it into quotes, as --shell 'python train.py > out'."
        if words[1].startswith("-") and " " in words[0]:
            step = f"Options stand before the text: put {words[1][:40]} before --shell."
        raise UsageError(f"--shell takes one text, and {len(words)} words were given.", step)
    return command_words(by_shell(words[0]))
