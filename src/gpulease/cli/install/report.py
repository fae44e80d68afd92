"""What `install` and `uninstall` tell: what was done to which file, and what to run next."""

from __future__ import annotations

import os

from gpulease.cli.install.changes import Change, Target
from gpulease.cli.parsing import Namespace, print_json

DONE = {"make": "made", "replace": "replaced", "mode": "corrected", "remove": "removed"}
BESIDE = "Settings that were edited by hand stay, also with --force. The new version is beside them, as .new."
EDITED = "What was edited by hand is left as it is. With --force it is not, and is kept as .bak."
SUPERVISORS = """\
There is no systemd here. Have whatever supervises services run, as root:
  {command}
For example, one of:
  runit   mkdir -p /etc/sv/gpulease && \
printf '#!/bin/sh\\nexec {command} 2>&1\\n' > /etc/sv/gpulease/run && chmod +x /etc/sv/gpulease/run
  OpenRC  printf '#!/sbin/openrc-run\\nsupervisor=supervise-daemon\\ncommand={python}\\ncommand_args="{rest}"\\n' \
> /etc/init.d/gpulease && chmod +x /etc/init.d/gpulease
  cron    echo '@reboot root {command}' > /etc/cron.d/gpulease"""
BY_ITSELF = "There is no systemd here. A broker of your own starts by itself at first use; nothing is left to do."


def has_systemd() -> bool:
    return os.path.isdir("/run/systemd/system")


def start_commands(arguments: Namespace, python: str) -> list[str]:
    if arguments.root:
        return [f"systemctl --root={arguments.root} enable gpulease"]
    if not has_systemd():
        return [f"{python} -I -m gpulease broker --system"] if arguments.system else []
    manager = "systemctl" if arguments.system else "systemctl --user"
    linger = [] if arguments.system else ["loginctl enable-linger"]
    return [*linger, *(f"{manager} {word}" for word in ("daemon-reload", "enable gpulease", "restart gpulease"))]


def how_to_start(arguments: Namespace, then: list[str]) -> str:
    if arguments.root or has_systemd():
        return "\n".join(["Then run:", *(f"  {command}" for command in then)])
    if arguments.user:
        return BY_ITSELF
    python, _, rest = then[0].partition(" ")
    return SUPERVISORS.format(command=then[0], python=python, rest=rest)


def show(arguments: Namespace, target: Target, changes: list[Change], account: str | None, then: list[str]) -> bool:
    """As JSON, or for people: then whoever calls may have more to say."""
    if arguments.json:
        files = [{"path": target.path(change.file), **_about(change)} for change in changes]
        print_json({"dry_run": arguments.dry_run, "account": account, "files": files, "next": then}, 2)
        return False
    done = [(account, "the account gpulease")] if account else []
    done += [(change.action, target.path(change.file)) for change in changes if change.action in DONE]
    for action, what in done:
        print(f"would {action:<8} {what}" if arguments.dry_run else f"{DONE[action]:<10} {what}")
    edited = [change.file for change in changes if change.action == "edited"]
    for file in edited:
        print(f"left       {target.path(file)}")
    fresh = {change.file.path for change in changes if change.action != "remove"}
    beside = [file for file in edited if f"{file.path}.new" in fresh]
    if beside:
        print(BESIDE)
    if len(edited) > len(beside):
        print(EDITED)
    if not done:
        print("Nothing is to be changed." if arguments.dry_run else "Nothing was changed.")
    return not arguments.dry_run


def _about(change: Change) -> dict[str, object]:
    file = change.file
    return {"action": change.action, "backup": change.backup, "mode": f"{file.mode:04o}", "owner": file.owner}
