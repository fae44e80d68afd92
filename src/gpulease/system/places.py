"""Where a broker lives: the system's place, a shared one, or the user's own; and whether to trust it.

A place has two folders. The run folder holds the socket, and a reboot or a logout may empty it. The state folder holds
what lasts: the database, its lock, the broker's log. A folder is trusted when it is a real directory, not writable
by others, and belongs to root, to this user, or to the user who runs the shared broker in it.
"""

from __future__ import annotations

import os
import stat

from gpulease.errors import BrokerUnavailable, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM = "/run/gpulease"
SYSTEM_STATE = "/var/lib/gpulease"
SHARED = "/tmp/gpulease"
SOCKET = "socket"
LOCK = "broker.lock"
ELSEWHERE = "Make it writable for you, or set XDG_STATE_HOME or GPULEASE_DIR to a folder that is."
READY = b"1"  # what a broker tells the process that started it
LONGEST_SOCKET = 100  # sun_path holds 108 bytes
SYSTEM_CONFIG = "/etc/gpulease/config.toml"
INSTALLED = "/etc/gpulease/installed"  # there from `gpulease install --system` to `gpulease uninstall`
LOCAL = "local"  # the engine that is the broker of this machine
ENGINE = "engine:"  # before the name of another one, where a state folder would stand


class Place:
    """Of one broker. Its state folder names it: the run folder may be another one after a logout."""

    def __init__(self, kind: str, run: str, state: str | None = None) -> None:
        self.kind, self.run, self.state = kind, run, run if state is None else state

    def kept(self, name: str) -> str:
        """A file of the state folder: state.db, broker.lock, broker.log."""
        return os.path.join(self.state, name)

    def __repr__(self) -> str:
        return f"Place({self.kind!r}, {self.run!r}, {self.state!r})"


def candidates(environ: Mapping[str, str]) -> list[Place]:
    """In the order in which clients look: system, shared, own."""
    if environ.get("GPULEASE_DIR") or simulated(environ) or environ.get("SLURM_JOB_ID"):
        return [own(environ)]  # never the broker of the real machine, nor of more than an allocation
    return [of_kind(kind, environ) for kind in ("system", "shared", "own")]


def of_kind(kind: str, environ: Mapping[str, str]) -> Place:
    """Where a broker of this kind serves. A folder that was asked for holds everything."""
    asked = environ.get("GPULEASE_DIR")
    if kind == "own":
        return own(environ)
    if asked:
        folder = os.path.abspath(asked)
        return Place(kind, folder, os.path.join(folder, "state") if kind == "system" else folder)
    if kind == "system":
        return Place(kind, SYSTEM, SYSTEM_STATE)
    return Place(kind, SHARED, os.path.join(_state_of_user(environ), "shared"))


def own(environ: Mapping[str, str]) -> Place:
    """The user's own broker; inside a job of Slurm's the one of that allocation, on this node."""
    if environ.get("SLURM_JOB_ID"):
        return _in_allocation(environ)
    asked = environ.get("GPULEASE_DIR")
    if asked:
        return Place("own", os.path.abspath(asked))
    if simulated(environ):
        from gpulease.simulator.activate import directory_from_environment

        machine = directory_from_environment(environ)
        if machine is not None:
            return Place("own", os.path.join(os.path.abspath(machine), "broker"))
    state = _state_of_user(environ)
    # The same for a login and for cron, which has no such variable.
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    run = os.path.join(runtime, "gpulease") if _is_ours(runtime) else os.path.join(state, "run")
    return Place("own", run, state)


def _in_allocation(environ: Mapping[str, str]) -> Place:
    """On a disk of the node, and gone with the job: it is nobody's but the allocation's."""
    from gpulease.model.allocation import allocation

    found = allocation(environ)
    name = found.name if found else ""
    base = environ.get("GPULEASE_DIR") or environ.get("SLURM_TMPDIR") or ""
    short = len(os.fsencode(os.path.join(base, name, SOCKET))) <= LONGEST_SOCKET
    if os.path.isabs(base) and short:
        return Place("own", os.path.join(base, name))
    return Place("own", os.path.join("/tmp", f"gpulease-{os.getuid()}-{name}"))


def _state_of_user(environ: Mapping[str, str]) -> str:
    """With the host's name in it: homes are often shared by hosts, and each has GPUs of its own."""
    base = environ.get("XDG_STATE_HOME") or ""
    if not os.path.isabs(base):
        home = os.path.abspath(environ.get("HOME") or os.path.expanduser("~"))
        base = os.path.join(home, ".local", "state")
    return os.path.join(base, "gpulease", os.uname().nodename)


def _is_ours(runtime: str) -> bool:
    """After `su` the variable may name another user's."""
    try:
        return os.path.isabs(runtime) and os.path.isdir(runtime) and os.stat(runtime).st_uid == os.getuid()
    except OSError:
        return False


def config_path(kind: str, environ: Mapping[str, str]) -> str | None:
    """Where the config of a broker of this kind belongs; a user's own has the settings of the user's commands too."""
    named, directory = environ.get("GPULEASE_CONFIG"), environ.get("GPULEASE_DIR")
    if named:
        return os.path.abspath(named)
    if directory:
        return os.path.join(os.path.abspath(directory), "config.toml")
    if simulated(environ):
        return None
    if kind == "system":
        return SYSTEM_CONFIG
    home = environ.get("HOME") or os.path.expanduser("~")
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    return os.path.join(base, "gpulease", "config.toml")


def engine(environ: Mapping[str, str]) -> str:
    """What answers requests: `local`, the broker of this machine, or another that GPULEASE_ENGINE or a config names.

    Each command asks this: a file in which the word does not occur is not parsed.
    """
    named = environ.get("GPULEASE_ENGINE")
    if named is not None or (environ.get("SLURM_JOB_ID") and environ.get("SLURMD_NODENAME")):
        return named or LOCAL  # on a node of a Slurm job the job's own GPUs are meant, whatever a config says
    for path in dict.fromkeys((config_path("own", environ), config_path("system", environ))):
        try:
            with open(path or "", "rb", buffering=0) as file:
                mentioned = b"engine" in file.read(1 << 18)
        except OSError:
            continue
        if mentioned:
            from gpulease.system.config_file import setting

            return str(setting("engine", environ) or LOCAL)
    return LOCAL


def socket_path(directory: str) -> str:
    path = os.path.join(directory, SOCKET)
    if len(os.fsencode(path)) > LONGEST_SOCKET:
        raise UsageError(
            f"The path {path!r} is too long for a socket.",
            f"Set GPULEASE_DIR to a path below {LONGEST_SOCKET - 8} bytes.",
        )
    return path


def system_jobs(home: str, place: Place) -> str:
    """Where a user's jobs are logged by the system's broker; by one in another place, apart."""
    from hashlib import blake2b

    apart = "" if place.run == SYSTEM else "-" + blake2b(os.fsencode(place.run), digest_size=4).hexdigest()
    return os.path.join(home, ".local", "state", "gpulease", os.uname().nodename, f"system{apart}")


def prepare(directory: str, everyone: bool, whose: int | None = None) -> None:
    """Make the directory for a broker of `whose`, or of this user, 0755 for everyone or 0700; or say why not."""
    mode = 0o755 if everyone else 0o700
    try:
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        os.mkdir(directory, mode)
    except FileExistsError:
        pass
    except OSError as error:
        raise BrokerUnavailable(f"The folder {directory!r} cannot be made: {error.strerror}.", ELSEWHERE) from None
    trouble = distrust(directory, {os.geteuid(), os.geteuid() if whose is None else whose})
    if trouble:
        raise BrokerUnavailable(f"The folder {directory!r} cannot be used: {trouble}.", _remedy(directory, mode, whose))
    try:
        if os.stat(directory).st_mode & 0o7777 != mode:
            os.chmod(directory, mode)  # whatever the umask is
        if whose is not None:
            os.chown(directory, whose, -1, follow_symlinks=False)
    except OSError as error:
        raise BrokerUnavailable(f"The folder {directory!r} cannot be used: {error.strerror}.", ELSEWHERE) from None


def _remedy(directory: str, mode: int, whose: int | None) -> str:
    from gpulease.system.identity import user_name

    if whose is not None:  # there may be state in it
        return f"If it is the broker's: `chown {user_name(whose)} {directory}; chmod {mode:o} {directory}`."
    able = {owner(directory): 1, "root": 1}
    return f"Have {' or '.join(able)} remove it, or set GPULEASE_DIR to another."


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


def prepare_both(place: Place, whose: int | None = None) -> None:
    """Both folders, the state folder for `whose`. Everybody comes to the run folder."""
    prepare(place.run, everyone=place.kind != "own")
    if place.state != place.run:
        prepare(place.state, False, whose)


def prepare_own(place: Place) -> None:
    """As `prepare_both`, for a client that is about to start its user's broker; never in the place of everybody's."""
    refuse_everybodys(place)
    prepare_both(place)


def everybodys(directory: str) -> str | None:
    """`system` or `shared` where a broker for everybody belongs into this folder."""
    kind = read_kind(directory)
    return kind if kind in ("system", "shared") and not distrust(directory) else None


def refuse_everybodys(place: Place) -> None:
    """For a client that found no broker at `place`: one for everybody is not started by a client."""
    kind = everybodys(place.run)
    if kind is not None:
        raise BrokerUnavailable(
            f"The broker for everybody in {place.run!r} does not run.", f"Start it with `gpulease broker --{kind}`."
        )


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


def spoiled(place: Place) -> str | None:
    """Why clients pass a place by that is there; None when they do not."""
    return distrust(place.run, {0} if place.kind == "system" else None) if os.path.lexists(place.run) else None


def in_charge(place: Place) -> bool:
    """Whether a broker for everybody that does not run keeps others from granting.

    The system's does until root removes its folder, and from the installation on: after a boot there is no folder, and
    people may log in before the service has made it. A shared one does while its socket is left.
    """
    if place.kind == "system":
        left = read_kind(place.run) == "system" and distrust(place.run, {0}) is None
        return left or (place.run == SYSTEM and installed())
    return place.kind == "shared" and socket_left(place.run)


def installed() -> bool:
    """Whether root has set up a broker for everybody that starts with the machine."""
    try:
        mark = os.lstat(INSTALLED)
    except OSError:
        return False
    return stat.S_ISREG(mark.st_mode) and mark.st_uid == 0


def down(place: Place) -> BrokerUnavailable:
    """The error for a broker for everybody that is in charge and does not run."""
    if not os.path.lexists(place.run):
        return BrokerUnavailable(
            "The broker of this machine is installed but has not started yet. Until it runs, no other broker starts.",
            "After a boot, try again in a moment. Or ask root to start it (`systemctl start gpulease`) or remove it "
            "(`gpulease uninstall`); or set GPULEASE_DIR for a broker of your own.",
        )
    kind, whose = place.kind, owner(place.run)
    return BrokerUnavailable(
        f"The {kind} broker of {whose} at {place.run} is down. Until it is back, no other broker starts.",
        f"Ask {whose} to start it again (`gpulease broker --{kind}`) or remove {place.run}; "
        "or set GPULEASE_DIR for a broker of your own.",
    )


def socket_left(directory: str) -> bool:
    """Whether a broker served here and did not end with nothing held."""
    try:
        left, folder = os.lstat(socket_path(directory)), os.lstat(directory)
        return stat.S_ISSOCK(left.st_mode) and left.st_uid == folder.st_uid and distrust(directory) is None
    except OSError:
        return False


def moved_to(place: Place) -> str | None:
    """The run folder in which a user's broker was when it last listened, if it is another than this session's."""
    if place.kind != "own" or place.state == place.run or distrust(place.state, {os.geteuid()}):
        return None
    try:
        with open(place.kept(LOCK), "rb") as file:
            path = os.fsdecode(file.read(LONGEST_SOCKET))
    except OSError:
        return None
    return path if os.path.isabs(path) and path != place.run else None


def owner(directory: str) -> str:
    """Whose the directory is, by name."""
    from gpulease.system.identity import user_name

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


def simulated(environ: Mapping[str, str]) -> bool:
    """Whether the devices to see are simulated ones."""
    return bool(environ.get("GPULEASE_SIMULATION") or environ.get("GPULEASE_SIMULATE", "0") not in ("", "0"))
