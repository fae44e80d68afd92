"""`gpulease debug`: why a job could not start, or how its command ended."""

from __future__ import annotations

from gpulease.cli.options import add_choice, filters
from gpulease.cli.parsing import ArgumentParser, Namespace, say
from gpulease.render.jobs import end_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease.protocol.messages import JobRow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease.protocol.messages import JobRow

EXAMPLES = """\
examples:
  gpulease debug 12
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)


def run(arguments: Namespace) -> int:
    from gpulease.api.jobs import show
    from gpulease.api.log import tail
    from gpulease.render.jobs import command_text

    for job in show(*arguments.ids, **filters(arguments), environment=True):
        say(f"job {job['id']} is {job['state']}: {job['why_waiting'] or job['why'] or _what_happened(job)}")
        say(f"  command  {command_text(job['command'])}")
        say(f"  folder   {job['cwd']}")
        say(f"  PATH     {(job.get('environment') or {}).get('PATH', '')}")
        for line in tail(job["log"], 5, job["uid"]) if job["runs"] else ():
            say(f"  output   {line}")
    return 0


def _what_happened(job: JobRow) -> str:
    if job["state"] != "failed" or job["exit_code"] is None:
        return "nothing is wrong with it"
    memory = ", out of memory" if job["out_of_memory"] else ""
    return f"it did start, and its command failed ({end_text(job['exit_code'], job['signal'])}{memory})"
