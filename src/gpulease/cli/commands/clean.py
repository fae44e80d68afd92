"""`gpulease clean`: forget ended jobs."""

from __future__ import annotations

import sys

from gpulease.cli.commands.jobs import say_done
from gpulease.cli.options import add_choice, add_everybody, filters, refused
from gpulease.cli.parsing import Any, ArgumentParser, Namespace
from gpulease.errors import UsageError
from gpulease.model.job_selection import DONE, ENDED, GPULIMIT, selection

EXAMPLES = """\
Without ids and states it deletes complete and invalid jobs, and keeps failed,
killed and lost ones. It also deletes a job's log, unless you chose its path
with --log.

examples:
  gpulease clean
  gpulease clean --all               all jobs that ended
  gpulease clean failed killed       the same as --state failed,killed
  gpulease clean 3,5-9
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser, more="; or final states, as failed (gpulimit's names work too)")
    add_everybody(parser)
    parser.add_argument("--all", "-a", action="store_true", help="all jobs that ended, also failed and killed ones")


def run(arguments: Namespace) -> int:
    from gpulease.api.jobs import clean

    ids, chosen = _without_states(arguments.ids, filters(arguments))
    usual = ",".join(ENDED if ids or arguments.all else DONE)
    if refused("clean", arguments, ids, chosen["state"] or usual):
        return 1
    done = clean(*ids, **chosen, all=arguments.all)
    say_done("forgot", done, ids)
    if not ids and chosen["state"] is None and not arguments.all:
        _say_what_is_kept(chosen)
    return 0


def _without_states(words: list[str], chosen: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Ids, and the filters with the states that were given as words."""
    states = [GPULIMIT.get(word, word) for word in words if GPULIMIT.get(word, word) in ENDED]
    if not states:
        return words, chosen
    if len(states) < len(words) or chosen["state"] is not None:
        raise UsageError("States were given together with ids or --state.", "Give states, or ids with --state.")
    return [], {**chosen, "state": ",".join(states)}


def _say_what_is_kept(chosen: dict[str, Any]) -> None:
    from gpulease.api.jobs import ask

    rest = ",".join(state for state in ENDED if state not in DONE)
    kept = len(ask("ls", selection((), **{**chosen, "state": rest}), ids=True)["ids"])
    if kept:
        what = f"gpulease: kept {kept} that failed, were killed or lost"
        print(f"{what}. `gpulease clean --all` deletes them too.", file=sys.stderr)
