"""Finding the broker of this machine, and starting the user's own at first need.

Standard library only, and little of it: commands that people wait for load this.
"""

from __future__ import annotations

import _socket as socket  # the module around it costs as much as the rest of a command's start
import os
import select
import sys
import time

from gpulease.errors import BrokerUnavailable, GpuleaseError, NotPermitted, StateError, by_code
from gpulease.protocol.wire import Unpacker
from gpulease.system import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

START = 30.0  # seconds for a broker to start
CONNECT = 5.0  # seconds to be let in
SEND = 60.0  # seconds to send a message: a broker that is stopped reads nothing
READ = 1 << 16
OF_A_JOB = {"GPULEASE_JOB", "GPULEASE_TOKEN", "GPULEASE_LEASE", "GPULEASE_DEVICES"}


def connect(start: bool, only: str | None = None) -> tuple[socket.socket, places.Place]:
    """The first broker that answers: the system's, a shared one, this user's own, which is started when `start`."""
    found = find(only)
    if found is not None:
        return found
    own = places.own(os.environ)
    places.refuse_everybodys(own)
    if not start or only not in (None, own.state):
        raise BrokerUnavailable("No broker is running.", "It starts by itself with `gpulease run` or `gpulease get`.")
    until = time.monotonic() + START
    while (found := _start_once(own, only)) is None:
        if time.monotonic() > until:
            raise BrokerUnavailable("The broker was started but does not answer.", _log_hint(own))
        time.sleep(0.02)
    return found


def _start_once(place: places.Place, only: str | None) -> tuple[socket.socket, places.Place] | None:
    """Of the clients that find no broker one starts it; the others look until it is there."""
    import fcntl

    places.prepare_own(place)
    lock = None
    try:
        lock = os.open(os.path.join(place.run, "start.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = find(only)
        if found is None:
            _start(place)
        return found or find(only)
    except BlockingIOError:
        return find(only)
    except OSError as trouble:
        where = trouble.filename or place.run
        raise StateError(f"The broker cannot start: {trouble.strerror}: {where!r}.", places.ELSEWHERE) from None
    finally:
        if lock is not None:
            os.close(lock)


def find_socket() -> str | None:
    """The directory of a broker that seems to be there, without asking it."""
    for place in places.candidates(os.environ):
        if os.path.exists(places.socket_path(place.run)) and not places.distrust(place.run):
            return place.run
    return None


def belongs_here() -> bool:
    """Whether a broker runs here, or left something behind: what it granted may be held while it is down."""
    own = places.own(os.environ)
    left = os.path.exists(own.kept("state.db")) or places.everybodys(own.run) is not None
    return left or find_socket() is not None or any(map(places.in_charge, places.candidates(os.environ)))


def find(only: str | None = None) -> tuple[socket.socket, places.Place] | None:
    """The first broker that answers. One for everybody that is down is not passed by: what it granted is still held."""
    for place in places.candidates(os.environ):
        if only not in (None, place.state):
            continue
        connected = try_connect(place.run)
        if connected is None and (elsewhere := places.moved_to(place)) is not None:
            connected = try_connect(elsewhere)
        if connected is not None:
            return connected, place
        if only is None and place.kind == "system":
            _warn_if_spoiled(place)
        if only is None and places.in_charge(place):
            raise places.down(place)
    return None


_warned = False


def _warn_if_spoiled(place: places.Place) -> None:
    """Its users would otherwise be alone with brokers of their own, and not know it."""
    global _warned
    trouble = None if _warned else places.spoiled(place)
    if trouble is not None:
        _warned = True
        print(f"gpulease: {place.run}, the folder of a broker for everybody, is ignored: {trouble}.", file=sys.stderr)


def try_connect(directory: str) -> socket.socket | None:
    """A connection to the broker at `directory`, if one listens there and may be trusted."""
    path = places.socket_path(directory)
    if not os.path.exists(path) or places.distrust(directory):
        return None
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        enter(connected, path)
    except OSError as trouble:
        connected.close()
        if isinstance(trouble, PermissionError) and directory == places.SYSTEM:
            raise _outside(path) from None
        return None
    if not places.is_broker_of(directory, peer_uid(connected)):
        connected.close()
        return None
    return connected


def _outside(path: str) -> NotPermitted:
    """Of the group that may use the system's broker."""
    import grp

    try:
        group = grp.getgrgid(os.stat(path).st_gid).gr_name
    except (KeyError, OSError):
        group = "of its socket"
    return NotPermitted(
        f"Only members of the group {group} may use the broker of this machine.",
        "Ask an administrator to add you; a new membership counts from the next login on.",
    )


def enter(connected: socket.socket, path: str) -> None:
    """A broker whose backlog is full is there all the same, and soon accepts."""
    until = time.monotonic() + CONNECT
    connected.setblocking(False)
    while True:
        try:
            connected.connect(path)
            return connected.settimeout(SEND)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def peer_uid(connected: socket.socket) -> int:
    data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(data[4:8], sys.byteorder, signed=True)


def _start(place: places.Place) -> None:
    """Start this user's broker in the background and wait until it is ready, or another one was quicker."""
    import subprocess

    _build_simulated_library()
    ours, theirs = os.pipe()
    with open(place.kept("broker.log"), "ab") as log:
        os.fchmod(log.fileno(), 0o600)
        begin = os.fstat(log.fileno()).st_size
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpulease.broker", "--ready", str(theirs)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=_with_full_paths(os.environ),
            pass_fds=(theirs,),
            start_new_session=True,
        )
        if os.environ.get("SLURM_TASK_PID") and os.environ.get("SLURM_JOB_ID"):
            _keep(log)
    os.close(theirs)
    with open(ours, "rb", buffering=0) as pipe:
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        reply = pipe.read(READ) if poll.poll(START * 1000) else b""
    if not reply and process.wait(START) > 0:  # else it was killed, and the next attempt may do better
        raise BrokerUnavailable(f"The broker could not be started{_last_words(place, begin)}.", _log_hint(place))
    for message in () if reply == places.READY else Unpacker().feed(reply):
        trouble = message["error"]
        if not trouble["fields"].get("serving"):  # else the one before is about to end, or to answer
            raise by_code(trouble["code"], trouble["what"], trouble["next_step"], {})


def _build_simulated_library() -> None:
    """Here, where nothing has a deadline. If it cannot be built, the broker says so to those who ask for GPUs."""
    if places.simulated(os.environ):
        from gpulease.simulator.activate import build_library

        try:
            build_library(os.environ)
        except GpuleaseError:
            pass


def _keep(log: IO[bytes]) -> None:
    """In a job of Slurm's: have the broker end with the task in which it was started."""
    import subprocess

    subprocess.Popen(
        [sys.executable, "-P", "-m", "gpulease.api.allocation_keeper", os.environ["SLURM_TASK_PID"]],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        env=_with_full_paths(os.environ),
        start_new_session=True,
    )


def _with_full_paths(environ: Mapping[str, str]) -> dict[str, str]:
    """The broker lives in another folder: what was relative to this one must not be. Nor is it a part of a job."""
    names = [name for name in ("GPULEASE_DIR", "GPULEASE_SIMULATION") if environ.get(name)]
    kept = {name: value for name, value in environ.items() if name not in OF_A_JOB}
    return {**kept, **{name: os.path.abspath(environ[name]) for name in names}}


def _last_words(place: places.Place, begin: int) -> str:
    """The last line that it wrote to its log, from `begin` on."""
    with open(place.kept("broker.log"), "rb") as log:
        log.seek(max(begin, os.fstat(log.fileno()).st_size - READ))
        lines = log.read(READ).decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {''.join(filter(str.isprintable, last))[:200].rstrip('.')}" if last else ""


def _log_hint(place: places.Place) -> str:
    return f"See {place.kept('broker.log')}."
