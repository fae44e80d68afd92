"""Who the processes on a device are: when they began, whose they are, and their commands."""

from __future__ import annotations

from collections.abc import Iterable

from gpulease.system import identity
from gpulease.system.reader import Reader

Facts = tuple[int | None, str | None, str | None]  # start time, user, command

NOBODY_VISIBLE: Facts = (None, None, None)

READER = Reader()


def facts(pids: Iterable[int], proc: str = "/proc") -> dict[int, Facts]:
    """All None for a process that cannot be seen from here; the command None where it could not be read in time."""
    seen = {pid: one for pid in pids if (one := _seen(pid, proc)) is not None}
    wanted = [(user or "", f"{proc}/{pid}/cmdline") for pid, (_, user, _) in seen.items()]
    lines = dict(zip(seen, READER.read(wanted), strict=True)) if seen else {}
    return {
        pid: NOBODY_VISIBLE if pid not in seen else (*seen[pid][:2], _command(lines[pid], seen[pid][2])) for pid in pids
    }


def _seen(pid: int, proc: str) -> tuple[int, str | None, str] | None:
    """When it began, its user, and its name."""
    try:
        found = identity.family(pid, proc)
        owner = identity.user_of(pid, proc)
    except OSError:
        return None
    return None if found is None else (found.start_time, None if owner is None else user_name(owner), found.name)


def user_name(uid: int) -> str:
    """As `identity.user_name`, which a directory service that hangs would keep waiting."""
    if uid not in identity.known_names:
        (name,) = READER.read([(f"uid {uid}", f"uid {uid}")])
        if name is None:
            return str(uid)
        known = name.decode("utf-8", "surrogateescape") or identity.subordinate(uid)
        identity.known_names[uid] = known or str(uid)
    return identity.known_names[uid]


def _command(line: bytes | None, name: str) -> str | None:
    """The command line; for a process without one (a kernel thread, a zombie) its name in brackets."""
    if line is None:
        return None
    return line.replace(b"\0", b" ").decode(errors="replace").strip() or f"[{name}]"
