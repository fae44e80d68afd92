"""`gpulease wait`: wait for jobs to end; its exit code is theirs."""

from __future__ import annotations

import sys
import time

from gpulease.cli.options import add_choice, filters
from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, clean, print_json
from gpulease.errors import NotFound
from gpulease.model.job_selection import selection
from gpulease.render.jobs import ends_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from gpulease.model.job_selection import JobId
    from gpulease.protocol.messages import JobEnd

MAX_REASONS = 100
EXAMPLES = """\
At the end it prints how the jobs ended, as `53 complete, 7 failed: 12,15-20`.
On a terminal it shows a progress bar. The exit code is 0 if all are complete.
Otherwise it is the job's own for one job, and 1 for several; 75 on timeout.

examples:
  gpulease wait 12
  gpulease wait all
  gpulease wait --label sweep1 --timeout 2h
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)
    parser.add_argument("--timeout", metavar="TIME", help="give up after this time, as 2h (exit code 75)")
    parser.add_argument("--quiet", "-q", action="store_true", help="print no progress bar and no summary")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.api.jobs import wait_with_progress

    bar, began = _Bar(arguments.quiet), time.monotonic()
    try:
        ended = wait_with_progress(selection(arguments.ids, **filters(arguments)), arguments.timeout, bar.show)
    except NotFound:
        _tell_moved(arguments.ids)
        raise
    finally:
        bar.end()
    if len(ended) < bar.total or any(job["state"] == "killed" for job in ended):
        _tell_moved(arguments.ids, time.monotonic() - began + 1)
    if arguments.json:
        print_json({"jobs": ended})
    elif not arguments.quiet:
        print(ends_text(ended, _reasons(ended)) or ("removed before they ended" if bar.total else "nothing to do"))
    return exit_code(ended)


def _tell_moved(ids: list[str], *since: float) -> None:
    from gpulease.cli.options import tell_moved

    tell_moved("wait", ids, *since)


def _reasons(ended: list[JobEnd]) -> dict[JobId, str]:
    """Why jobs did not end well, of as many as a person reads."""
    ids = [job["id"] for job in ended if job["state"] != "complete"][:MAX_REASONS]
    if not ids:
        return {}
    from gpulease.api.jobs import show
    from gpulease.errors import GpuleaseError

    try:
        jobs = show(ids)
    except GpuleaseError:
        return {}  # they were removed since
    reasons = {job["id"]: job["why"] or ("out of memory" if job["out_of_memory"] else "") for job in jobs}
    return {id: clean(why) for id, why in reasons.items() if why}


def exit_code(ended: list[JobEnd]) -> int:
    if all(job["state"] == "complete" for job in ended):
        return 0
    if len(ended) == 1:
        return ended[0]["exit_code"] or 1
    return 1


class _Bar:
    def __init__(self, quiet: bool) -> None:
        from gpulease.render.terminal import Terminal

        self._terminal = Terminal(sys.stderr)
        self._silent, self._shown = quiet or not self._terminal.interactive, False
        self.total = 0

    def show(self, ended: Collection[JobEnd], open_jobs: int) -> None:
        total = len(ended) + open_jobs
        self.total = max(total, self.total)
        if self._silent or total < 2:
            return
        from gpulease.render.terminal import fit

        bar = self._terminal.bar(len(ended) / total, 30)
        text = f"{bar} {len(ended)} of {total} ended{_others(ended)}"
        self._shown = True
        print(
            f"\r\x1b[K{fit(text, self._terminal.width - 1, self._terminal).rstrip()}",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def end(self) -> None:
        if self._shown:
            print(file=sys.stderr)


def _others(ended: Collection[JobEnd]) -> str:
    """Those that are not complete: `, 2 failed, 1 killed`."""
    states = [job["state"] for job in ended if job["state"] != "complete"]
    return "".join(f", {states.count(state)} {state}" for state in sorted(set(states)))
