"""`gpulease get` on Slurm: an allocation that is held for a script, for a time, or until it is released."""

from __future__ import annotations

import os

from gpulease.cli.commands.get import holder, refuse_pairs
from gpulease.cli.commands.slurm_run import notice_of
from gpulease.cli.parsing import Namespace, print_json
from gpulease.cli.request_options import acquire_fields
from gpulease.client.wait_notice import WaitNotice
from gpulease.errors import NotOnEngine


def run(arguments: Namespace) -> int:
    from gpulease.slurm.leases import hold
    from gpulease.slurm.records import Records

    refuse_pairs(arguments)
    if arguments.uuid:
        raise NotOnEngine("Slurm does not know the UUIDs of GPUs.", "Leave out --uuid.")
    fields = holder(arguments, acquire_fields(arguments, "get"))
    notice, labels = WaitNotice(arguments.quiet, log=True), None
    try:
        granted = hold(Records(os.environ), fields, notice_of(notice))
        labels = ",".join(device["label"] for device in granted["devices"])
    finally:
        notice.end(labels)
    if arguments.json:
        return print_json(granted)
    if arguments.export:  # so that `srun` runs in it
        print(f"export SLURM_JOB_ID={granted['id']} GPULEASE_LEASE={granted['id']} GPULEASE_DEVICES={labels}")
    else:
        print(labels)
    return 0
