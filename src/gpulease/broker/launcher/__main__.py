"""The one process of a system broker with privileges: it reads no stranger's message, and starts whatever needs a user.

It makes the folders and the socket, starts the broker as the user `gpulease`, and then does four things at the
broker's word, after checks of its own: it proves who is at the other end of a connection, starts an agent for a user
who was proven, asks PAM about the account of such a user, and signals a process of such a user. Whatever the broker
says, it runs no command but the agent, acts for nobody whom the kernel did not name, and for root only where the
administrator said so.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from gpulease.broker.home import Home
from gpulease.broker.launcher import privileges
from gpulease.broker.launcher.privileges import AccountGroups
from gpulease.errors import BrokerUnavailable, GpuleaseError, NotPermitted, in_words
from gpulease.system import identity, places
from gpulease.system.service import LauncherConfig, Manager

ACCOUNT = "gpulease"
PAM_SERVICE = "gpulease"
MOST = 1 << 16  # bytes of an instruction
PATIENCE = 3.0  # seconds for a broker before this one to end
SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)
NO_GROUP = 65534
LONGEST_CHECK = 60  # seconds
NO_LOGIN = ("nologin", "false", "true", "sync", "halt", "shutdown")
KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
FOR_BROKER = ("GPULEASE_", "XDG_", "NVIDIA_", "CUDA_", "LD_LIBRARY_PATH")

NO_MORE: Mapping[str, str] = MappingProxyType({})  # variables


class Launcher:
    def __init__(self, link: socket.socket, bound: str, known: str, root_jobs: bool, manager: Manager) -> None:
        self._link, self._bound, self._known, self._root_jobs = link, bound, known, root_jobs
        self._manager, self._groups = manager, AccountGroups()
        self._proven = _read_known(known)

    def serve(self) -> None:
        """Until the broker is gone."""
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._link, MOST, 1)
            except ConnectionResetError:  # it ended before it had read all that was said
                return
            if not data:
                return
            try:
                self._obey(json.loads(data), descriptors)
            except Exception as trouble:  # whatever the broker says, the others' agents go on
                print(f"gpulease launcher: refused: {trouble!r}", file=sys.stderr, flush=True)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _obey(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if message["do"] == "ready":
            self._manager.ready()
        elif message["do"] == "alive":
            self._manager.alive()
        elif message["do"] == "prove":
            refused: str | None = "The launcher cannot see which process this is: it may have ended."
            with contextlib.suppress(OSError, ValueError, KeyError, IndexError):  # each is answered, in order
                refused = self._prove(descriptors[0])
            self._link.send(json.dumps({"refused": refused}).encode())
        elif message["do"] == "agent":
            self._start_agent(int(message["uid"]), descriptors[0])
        elif message["do"] == "account":
            self._check_account(int(message["uid"]), descriptors[0])
        elif message["do"] == "signal":
            self._signal(int(message["uid"]), int(message["pid"]), int(message["start"]), int(message["number"]))

    # ---------------------------------------------------------------- who somebody is

    def _prove(self, descriptor: int) -> str | None:
        """Remember whose connection it is; or why nothing may be run for it."""
        with socket.fromfd(descriptor, socket.AF_UNIX, socket.SOCK_STREAM) as connected:
            ours = connected.family == socket.AF_UNIX and connected.getsockname() == self._bound
            if not ours or connected.getpeername():  # with a name it listens there, and did not come to us
                return "It did not come through the broker's socket."
            pid, uid, gid = identity.peer(connected)
            refused = self._refusal(uid) or privileges.leaves_sandbox(pid, uid, gid)
            refused = refused or self._groups.missing(uid, privileges.groups_of(pid))
            if privileges.peer_ended(connected):  # so that the pid may be another's already
                return "The process ended before the launcher knew whose it is."
        if refused is None and uid not in self._proven:
            with open(self._known, "a") as file:
                file.write(f"{uid}\n")
            self._proven.add(uid)
        return refused

    def _refusal(self, uid: int) -> str | None:
        if uid == 0 and not self._root_jobs:
            return "Root's jobs are not run (root-jobs is off); queue it as the user it is for."
        return None

    def _permitted(self, uid: int) -> bool:
        return uid in self._proven and self._refusal(uid) is None

    # ---------------------------------------------------------------- acting for a user

    def _start_agent(self, uid: int, link: int) -> None:
        try:
            if not self._permitted(uid):
                what = "root's jobs are neither run nor ended while root-jobs is off"
                raise PermissionError(1, what if uid == 0 else f"user {uid} has not used this broker yet")
            if os.fork() == 0:
                _become_agent(uid, link)
        except OSError as trouble:
            _tell(link, in_words(trouble), True)

    def _check_account(self, uid: int, link: int) -> None:
        try:
            if not self._permitted(uid):
                raise PermissionError(1, f"user {uid} has not used this broker yet")
            if os.fork() == 0:
                _tell_of_account(uid, link)
        except OSError as trouble:
            _tell(link, in_words(trouble), True)

    def _signal(self, uid: int, pid: int, start: int, number: int) -> None:
        """Only if it is that process still, and that user's."""
        if not self._permitted(uid) or number not in SIGNALS or pid <= 1:
            raise ValueError("the launcher does not send this signal to this process")
        descriptor = os.pidfd_open(pid)
        try:
            if identity.start_time(pid) == start and identity.user_of(pid) == uid:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _read_known(path: str) -> set[int]:
    with contextlib.suppress(FileNotFoundError), open(path) as file:
        return {int(line) for line in file if line.strip().isdecimal()}
    return set()


def _become_agent(uid: int, link: int) -> NoReturn:
    """In a child: this user, with PAM's limits, and then the agent. Never returns."""
    try:
        _limit_time()
        purpose, groups = _session(uid)
        os.chdir("/")
        os.setsid()
        os.setgroups(groups)
        os.setresgid(groups[0], groups[0], groups[0])
        os.setresuid(uid, uid, uid)
        privileges.join_new_keyring()
        os.set_inheritable(link, True)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        words = [sys.executable, "-P", "-m", "gpulease.broker.agent", str(link), str(files), *purpose]
        signal.alarm(0)
        os.execve(words[0], words, _environ())
    except BaseException as trouble:
        _tell(link, str(trouble), True)
    os._exit(1)


def _tell_of_account(uid: int, link: int) -> NoReturn:
    """In a child, since a directory service may take its time. Never returns."""
    try:
        _limit_time()
        _tell(link, *(_refused_to(uid) or (None, True)))
    except BaseException as trouble:
        _tell(link, str(trouble), True)
    os._exit(0)


def _limit_time() -> None:
    """A process of the launcher's that waits for a directory service ends at some time."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LONGEST_CHECK)


def _session(uid: int) -> tuple[list[str], list[int]]:
    """What the agent is for, and its groups. A user who may run nothing any more can still have runs to end."""
    refused = _refused_to(uid, session=True)
    try:
        entry = pwd.getpwuid(uid)
        groups = list(dict.fromkeys([entry.pw_gid, *os.getgrouplist(entry.pw_name, entry.pw_gid)]))
    except KeyError:
        groups = [NO_GROUP]
    if refused is not None:
        return ["--end-only", refused[0], "for-now" if refused[1] else "for-good"], groups
    return ["--login"], groups


def _refused_to(uid: int, session: bool = False) -> tuple[str, bool] | None:
    """Why nothing may be started for a user, and whether that may pass.

    `session`: its limits are set for this process and all that it starts.
    """
    import pamela

    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return f"user {uid} has no account", False
    user = entry.pw_name
    if os.path.basename(entry.pw_shell) in NO_LOGIN and uid != 0:
        return f"the account {user} may not log in ({entry.pw_shell})", False
    try:
        pamela.check_account(user, service=PAM_SERVICE)
        if session:
            pamela.open_session(user, service=PAM_SERVICE)
    except pamela.PAMError as trouble:
        return f"PAM refuses the account {user}: {trouble.message}", True
    return None


def _tell(link: int, why: str | None, temporary: bool) -> None:
    """To the broker, in an agent's place: a length of four bytes, then JSON, as gpulease.protocol.wire has it."""
    body = json.dumps({"refused": why, "passing": temporary}).encode()
    with contextlib.suppress(OSError):
        os.write(link, struct.pack(">I", len(body)) + body)


def _environ(prefixes: tuple[str, ...] = ()) -> dict[str, str]:
    """Of root's own variables only these: there may be secrets among the others."""
    return {name: text for name, text in os.environ.items() if name in KEPT_VARIABLES or name.startswith(prefixes)}


# -------------------------------------------------------------------- beginning


def main() -> int:
    try:
        return _main(sys.argv[1:])
    except GpuleaseError as trouble:
        print(f"gpulease: {trouble.what}\n{trouble.next_step}", file=sys.stderr, flush=True)
        return trouble.exit_code


def _main(words: list[str]) -> int:
    """Make what the broker needs, start it, and obey it; its exit code is ours."""
    os.chdir("/")
    manager = Manager(os.environ)
    account, config = _account(), LauncherConfig.read(os.environ)
    home = Home(places.of_kind("system", os.environ), account.pw_uid, config.group)
    privileges.join_new_keyring()  # what is in root's own is nobody else's
    if "--replace" in words:
        _check_config(account)
        home.replace()
    else:
        _enter(home)
    known = f"{home.place.state}-launcher"  # what the launcher knows is not the broker's to change
    places.prepare(known, everyone=False)
    with home.listen() as listener:
        bound = listener.getsockname()
        broker, link = _start_broker(account, home, listener, words, manager.patience)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: broker.send_signal(number))
    signal.signal(signal.SIGABRT, lambda number, frame: broker.kill())  # by the service manager's watchdog
    signal.signal(signal.SIGCHLD, lambda number, frame: _reap(broker.pid))
    if not config.root_jobs:  # else whatever root has is to be had here anyway, and only so can root be looked at
        privileges.keep_capabilities("SETUID", "SETGID", "KILL", "SYS_RESOURCE", "AUDIT_WRITE", "DAC_READ_SEARCH")
    Launcher(link, bound, os.path.join(known, "users"), config.root_jobs, manager).serve()
    code = broker.wait()
    if code:
        print(f"gpulease launcher: the broker ended with code {code}", file=sys.stderr, flush=True)
    return code


def _enter(home: Home) -> None:
    """A broker whose launcher was killed is about to end."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return home.enter()
        except BrokerUnavailable as trouble:
            if not trouble.fields.get("serving") or time.monotonic() > until:
                raise
            time.sleep(0.05)


def _check_config(account: pwd.struct_passwd) -> None:
    """By the new broker, as its user: what it would refuse must not end the one that runs."""
    words = [sys.executable, "-P", "-m", "gpulease.broker", "--system", "--check"]
    with _readable():
        checked = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, **_as_broker(account))
    if checked.returncode:
        raise BrokerUnavailable("The running broker was left alone, because another could not start.", "See above.")


def _as_broker(account: pwd.struct_passwd, more: Mapping[str, str] = NO_MORE) -> dict[str, Any]:
    home = places.of_kind("system", os.environ).state
    return {
        "cwd": "/", "user": account.pw_uid, "group": account.pw_gid,
        "extra_groups": os.getgrouplist(account.pw_name, account.pw_gid),
        "env": {**_environ(FOR_BROKER), **more, "HOME": home, "USER": ACCOUNT, "LOGNAME": ACCOUNT},
    }  # fmt: skip


def _start_broker(
    account: pwd.struct_passwd, home: Home, listener: socket.socket, words: list[str], patience: float | None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """As its own user; leaving root's takes all capabilities from it. It keeps the locks if the launcher dies first."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    given = (listener.fileno(), theirs.fileno())
    rest = [word for word in words if word != "--replace"]
    watched = {} if patience is None else {"WATCHDOG_USEC": str(round(patience * 1e6))}
    with theirs, _readable():
        broker = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpulease.broker", "--system", "--given", *map(str, given), *rest],
            pass_fds=(*given, *home.descriptors),
            **_as_broker(account, watched),
        )
    return broker, ours


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except PermissionError as trouble:
        what = f"The user {ACCOUNT} cannot run {sys.executable}: {trouble.strerror}."
        raise BrokerUnavailable(
            what, "Install gpulease where everybody can read it, as in /opt: `chmod -R a+rX`."
        ) from None


def _reap(broker: int) -> None:
    """Agents that ended; how the broker ended is asked for at the end."""
    with contextlib.suppress(ChildProcessError):
        while (seen := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and seen.si_pid != broker:
            os.waitpid(seen.si_pid, os.WNOHANG)


def _account() -> pwd.struct_passwd:
    if os.geteuid() != 0:
        raise NotPermitted("Only root may run the system's broker.", "Use --shared instead.")
    try:
        import pamela  # noqa: F401

        return pwd.getpwnam(ACCOUNT)
    except ImportError:
        step = "Install gpulease[system] instead of gpulease; see `gpulease help how-to/install`."
        raise BrokerUnavailable("PAM cannot be asked about accounts: `pamela` is not installed.", step) from None
    except KeyError:
        step = "Run `gpulease install --system`, or `useradd --system gpulease`."
        raise BrokerUnavailable(f"There is no user {ACCOUNT!r} for the system's broker to run as.", step) from None


if __name__ == "__main__":
    sys.exit(main())
