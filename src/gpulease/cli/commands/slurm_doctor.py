"""`gpulease doctor` on Slurm: whether jobs can be queued, run and known there."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gpulease.cli.commands import doctor
from gpulease.cli.commands.doctor import Finding
from gpulease.cli.parsing import Namespace
from gpulease.errors import GpuleaseError


def run(arguments: Namespace) -> int:
    return doctor.show(arguments, list(_findings())) if arguments.hosts is None else doctor.run(arguments)


def _findings() -> Iterator[Finding]:
    from gpulease.slurm.doctor import diagnosis
    from gpulease.slurm.records import Records

    yield from doctor.software()
    try:
        for finding in diagnosis(Records(os.environ)):
            yield Finding(*finding)
    except GpuleaseError as trouble:
        yield Finding("error", "Slurm", trouble.what, trouble.next_step)
