"""`gpulease debug`: why a job could not start."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gpulease.cli.choosing import add_choice, choice

EXAMPLES = """\
examples:
  gpulease debug 12
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)


def run(arguments: Namespace) -> int:
    from shlex import join

    from gpulease.cli.show import tail
    from gpulease.client import Client

    for job in Client().ask("show", select=choice(arguments), environment=True)["jobs"]:
        print(f"job {job['id']} is {job['state']}: {job['why_waiting'] or job['why'] or 'nothing is wrong with it'}")
        print(f"  command  {join(job['command'])}")
        print(f"  folder   {job['cwd']}")
        print(f"  PATH     {(job.get('environment') or {}).get('PATH', '')}")
        for line in tail(job["log"], 5):
            print(f"  output   {line}")
    return 0
