"""Where a broker lives: the system's place, a shared one, or the user's own; and whether to trust it.

A place is a directory with the socket, the state and the logs. It is trusted when it is a real directory, not writable
by others, and belongs to root, to this user, or to whoever runs the shared broker in it.
"""

from __future__ import annotations

import os
import stat

from gpulease.errors import BrokerUnavailable, UsageError
from gpulease.probes import simulated as simulated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM = "/run/gpulease"
SHARED = "/tmp/gpulease"
SOCKET = "socket"
READY = b"1"  # what a broker tells whoever started it
LONGEST_SOCKET = 100  # sun_path holds 108 bytes


def candidates(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """(kind, directory), in the order in which clients look: system, shared, own."""
    if environ.get("GPULEASE_DIR") or simulated(environ):
        return [("own", own(environ))]  # never the broker of the real machine
    return [("system", SYSTEM), ("shared", SHARED), ("own", own(environ))]


def own(environ: Mapping[str, str]) -> str:
    asked = environ.get("GPULEASE_DIR")
    if asked:
        return os.path.abspath(asked)
    if simulated(environ):
        from gpulease.simulation.activate import directory_from_environment

        machine = directory_from_environment(environ)
        if machine is not None:
            return os.path.join(os.path.abspath(machine), "broker")
    # The same for a login and for cron, which has no such variable.
    runtime = environ.get("XDG_RUNTIME_DIR") or _runtime_of_user()
    if runtime and os.path.isabs(runtime) and os.path.isdir(runtime):
        return os.path.join(runtime, "gpulease")
    home = environ.get("HOME") or os.path.expanduser("~")
    return os.path.join(home, ".local", "state", "gpulease")


def _runtime_of_user() -> str | None:
    folder = f"/run/user/{os.getuid()}"
    try:
        return folder if os.stat(folder).st_uid == os.getuid() else None
    except OSError:
        return None


def socket_path(directory: str) -> str:
    path = os.path.join(directory, SOCKET)
    if len(os.fsencode(path)) > LONGEST_SOCKET:
        raise UsageError(
            f"The path {path!r} is too long for a socket.",
            f"Set GPULEASE_DIR to a path below {LONGEST_SOCKET - 8} bytes.",
        )
    return path


def prepare(directory: str, everyone: bool) -> None:
    """Make the directory for a broker of this user, 0755 for everyone or 0700, or say why it cannot be."""
    mode = 0o755 if everyone else 0o700
    try:
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        os.mkdir(directory, mode)
    except FileExistsError:
        pass
    except OSError as error:
        raise BrokerUnavailable(f"The folder {directory!r} cannot be made: {error.strerror}.") from None
    trouble = distrust(directory, {os.geteuid()})
    if trouble:
        raise BrokerUnavailable(
            f"The folder {directory!r} cannot be used: {trouble}.",
            f"Have {owner(directory)} or root remove it, or set GPULEASE_DIR to another.",
        )
    os.chmod(directory, mode)  # whatever the umask is


def write_kind(directory: str, kind: str) -> None:
    """Leave a mark by which clients see whose broker belongs here while none runs."""
    with open(os.path.join(directory, "kind"), "w") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(kind)


def read_kind(directory: str) -> str:
    try:
        with open(os.path.join(directory, "kind")) as file:
            return file.read(20)
    except OSError:
        return ""


def prepare_own(directory: str) -> None:
    """As `prepare`, for a client that is about to start its user's broker; never in the place of everybody's."""
    kind = read_kind(directory)
    if kind in ("system", "shared") and not distrust(directory):
        raise BrokerUnavailable(
            f"The broker for everybody in {directory!r} does not run.", f"Start it with `gpulease broker --{kind}`."
        )
    prepare(directory, everyone=False)


def distrust(directory: str, owners: set[int] | None = None) -> str | None:
    """Why `directory` must not be used; None when it may."""
    try:
        seen = os.lstat(directory)
    except OSError as error:
        return (error.strerror or "it cannot be read").lower()
    if stat.S_ISLNK(seen.st_mode):
        return "it is a symbolic link"
    if not stat.S_ISDIR(seen.st_mode):
        return "it is not a directory"
    if owners is not None and seen.st_uid not in owners:
        return f"it belongs to {owner(directory)}"
    if seen.st_mode & 0o022:
        return "others may write in it"
    return None


def in_charge(directory: str) -> bool:
    """Whether a broker served here and did not end with nothing held: its socket is still there."""
    try:
        left = os.lstat(socket_path(directory))
        return stat.S_ISSOCK(left.st_mode) and left.st_uid == os.lstat(directory).st_uid and distrust(directory) is None
    except OSError:
        return False


def owner(directory: str) -> str:
    """Whose the directory is, by name."""
    from gpulease.identity import user_name

    try:
        return user_name(os.lstat(directory).st_uid)
    except OSError:
        return "nobody"


def is_broker_of(directory: str, peer_uid: int) -> bool:
    """Whether the process at the other end of the socket is the directory's owner, or root."""
    try:
        return peer_uid in (0, os.lstat(directory).st_uid)
    except OSError:
        return False
