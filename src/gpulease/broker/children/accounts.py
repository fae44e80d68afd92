"""What the directory of users says, asked in a child of the broker: a directory service may hang.

A message for each question, `{"kind", "name"}`, and one for each answer, `{"told"}`, in order. It ends with the broker,
and when it was asked nothing for a while.
Nobody but the broker starts it: `python -m gpulease.broker.children.accounts`.
"""

from __future__ import annotations

import os
import select
import sys
from typing import Any

from gpulease.protocol.wire import Unpacker, pack
from gpulease.system import identity

IDLE = 30.0  # seconds
READ = 1 << 16


def look_up(kind: str, name: Any) -> Any:
    """Of `uid` N: name, groups, home and whether there is such an account. Of `user` NAME: its uid. Of `group` NAME: if
    there is such a group."""
    if kind == "uid":
        identity.known_names.pop(name, None)  # it may have been renamed
        groups = identity.group_names(name)
        return [identity.user_name(name), list(groups), identity.home_of(name), identity.has_account(name)]
    return identity.uid_of(name) if kind == "user" else identity.has_group(name)


def main() -> int:
    questions = Unpacker()
    while select.select([0], [], [], IDLE)[0]:
        data = os.read(0, READ)
        if not data:
            break
        for question in questions.feed(data):
            try:
                answer = look_up(question["kind"], question["name"])
            except (OSError, KeyError, ValueError, OverflowError):
                answer = None
            try:
                os.write(1, pack({"told": answer}))
            except BrokenPipeError:  # the broker was killed
                return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
