"""`gpulease debug`: why a job could not start, or how its command ended."""

from __future__ import annotations

from gpulease.cli.choosing import add_choice, filters
from gpulease.cli.parsing import ArgumentParser, Namespace, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease.messages import JobRow

EXAMPLES = """\
examples:
  gpulease debug 12
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)


def _how(job: JobRow) -> str:
    """Of one that gpulease has nothing to say about: what its own command did."""
    from gpulease.job_words import end_text

    if job["state"] in ("complete", "running", "paused"):
        return "nothing is wrong with it"
    return f"it was started, and its command ended with {end_text(job['exit_code'], job['signal']) or 'no exit code'}"


def run(arguments: Namespace) -> int:
    from gpulease.cli.ls import command_text
    from gpulease.job_log import tail
    from gpulease.queueing import show

    for job in show(*arguments.ids, **filters(arguments), environment=True):
        say(f"job {job['id']} is {job['state']}: {job['why_waiting'] or job['why'] or _how(job)}")
        say(f"  command  {command_text(job['command'])}")
        say(f"  folder   {job['cwd']}")
        say(f"  PATH     {(job.get('environment') or {}).get('PATH', '')}")
        for line in tail(job["log"], 5, job["uid"]) if job["runs"] else ():
            say(f"  output   {line}")
    return 0
