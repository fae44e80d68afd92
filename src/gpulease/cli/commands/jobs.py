"""`gpulease kill`, `rm`, `pause`, `resume` and `start`: do something to jobs, and say to which."""

from __future__ import annotations

import sys

from gpulease.cli.options import add_choice, add_everybody, filters, refused
from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, print_json, say
from gpulease.errors import UsageError
from gpulease.model.job_selection import ENDED, STATES, ranges
from gpulease.render.jobs import left_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease.protocol.messages import Done

MAX_NAMED = 5  # jobs that are named one by one
OPEN = STATES[:4]


class Act:
    """One such verb, named as the library's function is; `states` are those of the jobs that it is for.

    `ending`: what is said of a job that goes on until it has ended.
    """

    def __init__(
        self,
        verb: str,
        past: str,
        examples: str,
        states: tuple[str, ...],
        *,
        queue: str | None = None,
        ending: str | None = None,
    ) -> None:
        self._verb, self._past, self._examples, self._states = verb, past, examples, ",".join(states)
        self._queue, self._ending = queue, ending

    def configure(self, parser: ArgumentParser) -> None:
        parser.epilog = self._examples
        add_choice(parser)
        add_everybody(parser)
        add_json(parser)
        if self._queue is not None:
            parser.add_argument("--queue", action="store_true", help=self._queue)
        if self._ending is not None:
            parser.add_argument("--wait", action="store_true", help="return when all their processes are gone")

    def run(self, arguments: Namespace) -> int:
        from gpulease.api import jobs as api_jobs

        if self._verb == "kill" and any(id.startswith("-") for id in arguments.ids):
            raise UsageError("`kill` takes no signal.", "It sends TERM, and KILL after `grace` (see `gpulease set`).")
        act = getattr(api_jobs, self._verb)
        if self._queue is not None and arguments.queue:
            act(*arguments.ids, **filters(arguments), queue=True)
            print(f"{self._past} the queue")
            return 0
        if refused(self._verb, arguments, arguments.ids, self._states):
            return 1
        done = act(*arguments.ids, **filters(arguments))
        if arguments.json:
            if self._ending is not None and arguments.wait and done.get("ending"):
                api_jobs.wait_until_gone(done["ending"])
                done["ending"] = []
            return print_json(done, 2)
        say_done(self._past, done, arguments.ids, self._ending)
        if self._verb == "start":
            _say_what_waits(done)
        if self._ending is not None and arguments.wait and done.get("ending"):
            api_jobs.wait_until_gone(done["ending"])
            print(f"{self._past} {ranges(done['ending'])}")
        return 0


def _say_what_waits(done: Done) -> None:
    """A quota, a paused queue or a device in use keep a job from starting, also with `start`."""
    from gpulease.api.jobs import show

    for job in show(*done["ids"][:MAX_NAMED]) if done["ids"] else ():
        if job["why_waiting"]:
            say(f"gpulease: job {job['id']} waits: {job['why_waiting']}", sys.stderr)


def say_done(past: str, done: Done, ids: list[str], ending: str | None = None) -> None:
    """What was done, and what could not be done and why; of `all` nobody expects it to include what has ended."""
    still = done.get("ending", []) if ending is not None else []
    over = sorted(set(done["ids"]) - set(still))
    if over or not still:
        print(f"{past} {ranges(over)}" if over else "nothing to do")
    if still:
        print(f"{ending} {ranges(still)}", flush=True)
    left = done["skipped"] if ids != ["all"] else [text for text in done["skipped"] if not text.endswith(ENDED)]
    if left:
        say(f"gpulease: left as they are: {left_text(left)}", sys.stderr)


kill = Act(
    "kill",
    "killed",
    """\
gpulease sends TERM, and KILL after the parameter `grace` (see `gpulease set`).
Until all processes of the job are gone, it is *ending* and its GPU is not free;
`ls`, `show` and `status` say so. --wait returns when they are gone.

examples:
  gpulease kill 3
  gpulease kill 3,5-9
  gpulease kill all
  gpulease kill --label sweep1
  gpulease kill --label sweep1 --wait
  sudo gpulease kill --user ada     all jobs of ada
""",
    OPEN,
    ending="ending",
)
rm = Act(
    "rm",
    "removed",
    """\
This also deletes the job's log, unless you chose its path with --log.

examples:
  gpulease rm 3
  gpulease rm --state failed
""",
    STATES,
    ending="removing",
)
pause = Act(
    "pause",
    "paused",
    """\
A paused job keeps its GPU and the memory on it. With --queue, running jobs go
on and no other job starts.

examples:
  gpulease pause 3
  gpulease pause --queue
""",
    ("running",),
    queue="start no more jobs; running ones go on",
)
resume = Act(
    "resume",
    "resumed",
    "examples:\n  gpulease resume 3\n  gpulease resume --queue\n",
    ("paused", "held"),
    queue="start jobs again",
)
start = Act(
    "start",
    "next to start:",
    """\
For you it puts the job ahead of your other jobs. For root and the user who runs
the broker it starts the job next, past limits and everybody in the queue, but
never on a GPU that is in use. A failed, killed or lost job runs again.

examples:
  gpulease start 12
""",
    ("waiting", "held"),
)
