"""Acting as another real user, which only root can."""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import traceback
from collections.abc import Callable
from typing import Any

from support.needs import needs_root as needs_root

PR_SET_DUMPABLE = 4


def two_users() -> tuple[pwd.struct_passwd, pwd.struct_passwd]:
    """Two users of this machine that are not root; one that is in several groups, if there is such a one."""
    others = [entry for entry in pwd.getpwall() if entry.pw_uid != 0]
    others.sort(key=lambda entry: -len(os.getgrouplist(entry.pw_name, entry.pw_gid)))
    return others[0], others[1]


def as_user(
    user: pwd.struct_passwd,
    action: Callable[[], Any],
    before: Callable[[], None] = lambda: None,
    groups: tuple[int, ...] | None = None,
) -> Any:
    """What `action` returns in a process of that user. No exec, since the interpreter may be root's alone to read.

    `before` is called as root.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            before()
            os.setgroups(os.getgrouplist(user.pw_name, user.pw_gid) if groups is None else groups)
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # as after an exec: its user may look at it
            os.write(theirs, json.dumps(action()).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        reply = pipe.read()
    os.waitpid(pid, 0)
    assert reply, "the other user's process failed"
    return json.loads(reply)
