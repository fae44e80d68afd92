"""Who a process is, from /proc. A pid alone names nobody: only pid and start time together do."""

from __future__ import annotations

import os

Facts = tuple[int | None, str | None, str | None]  # start time, user, command

NOBODY_VISIBLE: Facts = (None, None, None)

_names: dict[int, str] = {}


def user_name(uid: int) -> str:
    """The login name of `uid`, or the number itself where it has no name."""
    name = _names.get(uid)
    if name is None:
        import pwd

        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = str(uid)
        _names[uid] = name
    return name


def start_time(pid: int, proc: str = "/proc") -> int | None:
    """When `pid` began, in clock ticks since boot; None when no such process can be seen."""
    line = _read(f"{proc}/{pid}/stat")
    return None if line is None else _start_time_of(line)


def facts(pid: int, proc: str = "/proc") -> Facts:
    """Start time, user and command line of `pid`; all None when it cannot be seen from here."""
    folder = f"{proc}/{pid}"
    line = _read(f"{folder}/stat")
    if line is None:
        return NOBODY_VISIBLE
    try:
        user = user_name(os.stat(folder).st_uid)
    except OSError:
        user = None
    return _start_time_of(line), user, _command(folder, line)


def _command(folder: str, stat_line: bytes) -> str:
    """The command line; for a process without one (a kernel thread, a zombie) its name in brackets."""
    line = _read(f"{folder}/cmdline")
    if line:
        return line.replace(b"\0", b" ").decode(errors="replace").strip()
    name = stat_line[stat_line.index(b"(") + 1 : stat_line.rindex(b")")]
    return f"[{name.decode(errors='replace')}]"


def _start_time_of(stat_line: bytes) -> int:
    # The name in parentheses may itself hold spaces and parentheses: count from the last one.
    return int(stat_line[stat_line.rindex(b")") + 2 :].split(None, 20)[19])


def _read(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return None
    finally:
        os.close(descriptor)
