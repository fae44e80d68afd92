"""The identity of a process, from /proc. A pid alone names nobody: only pid and start time together do.

None means that no such process can be seen. An OSError means that nobody knows, for want of descriptors or of memory:
that is no proof of anybody's end.
"""

from __future__ import annotations

import os
from _socket import SO_PEERCRED, SOL_SOCKET, socket
from errno import EINVAL, ENOENT
from select import POLLIN, poll
from stat import S_ISFIFO
from struct import Struct

_CREDENTIALS = Struct("3i")

UNSEEN = (FileNotFoundError, ProcessLookupError, PermissionError, NotADirectoryError)  # gone, or hidden from us

READ = 4096  # bytes of a file at most
LEVELS = 64  # of the processes above one that are looked at: there may be thousands, and all of them a stranger's
BROKER_NAME = "gpulease-broker"  # what a broker's process calls itself

known_names: dict[int, str] = {}


def user_name(uid: int) -> str:
    """The login name of `uid`, of whose range of subordinate ids it is in, or the number itself."""
    name = known_names.get(uid)
    if name is None:
        import pwd

        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = subordinate(uid) or str(uid)
        known_names[uid] = name
    return name


def subordinate(uid: int, path: str = "/etc/subuid") -> str | None:
    """Whose user namespaces may have processes of `uid`: else somebody with 65,536 of these would be as many users."""
    try:
        with open(path) as file:
            lines = [line.strip().split(":") for line in file]
    except (OSError, ValueError):
        return None
    for name, first, count in (fields for fields in lines if len(fields) == 3):
        if first.isdecimal() and count.isdecimal() and 0 <= uid - int(first) < int(count):
            return known_names.get(int(name), name) if name.isdecimal() else name
    return None


def uid_of(name: str) -> int | None:
    """The user of that name, or with that number."""
    import pwd

    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return int(name) if name.isascii() and name.isdecimal() and len(name) < 12 else None


def has_group(name: str) -> bool:
    import grp

    try:
        return bool(grp.getgrnam(name))
    except (KeyError, ValueError):
        return False


def home_of(uid: int) -> str:
    """The home folder of `uid`; one that is nowhere, if it has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return "/nonexistent"


def account_name(uid: int) -> str:
    """Nothing for one without an account."""
    return user_name(uid) if has_account(uid) else ""


def has_account(uid: int) -> bool:
    import pwd

    try:
        return bool(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return False


def start_time(pid: int, proc: str = "/proc") -> int | None:
    """When `pid` began, in clock ticks since boot; None when no such process can be seen."""
    line = _read(f"{proc}/{pid}/stat")
    return None if line is None else _start_time_of(line)


def _start_time_of(stat_line: bytes) -> int:
    # The name in parentheses may itself hold spaces and parentheses: count from the last one.
    return int(stat_line[stat_line.rindex(b")") + 2 :].split(None, 20)[19])


def _read(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except UNSEEN:
        return None
    try:
        return os.read(descriptor, READ)
    except UNSEEN:
        return None
    finally:
        os.close(descriptor)


def boot_id() -> str:
    """Which start of this machine it is: after another one every process is gone."""
    return (_read("/proc/sys/kernel/random/boot_id") or b"").decode().strip()


def pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when `pid` ends; None when there is no such process now."""
    try:
        return os.pidfd_open(pid)
    except (ProcessLookupError, OverflowError):
        return None
    except OSError as trouble:
        if trouble.errno in (EINVAL, ENOENT):  # a number that no process can have, or that of a thread
            return None
        raise


def is_gone(pid: int, began: int | None) -> bool:
    """Whether the process `pid` that began at that time has ended, for certain."""
    descriptor = pidfd(pid)
    if descriptor is None:
        return True
    try:
        seen = start_time(pid)
        ended = poll()
        ended.register(descriptor, POLLIN)
        return bool(ended.poll(0)) or (None not in (seen, began) and seen != began)
    finally:
        os.close(descriptor)


def peer(connected: socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the process at the other end of a socket."""
    data = connected.getsockopt(SOL_SOCKET, SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(data)
    return pid, uid, gid


def user_of(pid: int, proc: str = "/proc") -> int | None:
    """The user that `pid` runs as."""
    try:
        return os.stat(f"{proc}/{pid}").st_uid
    except UNSEEN:
        return None


def parent_of(pid: int) -> int | None:
    fields = _fields(pid)
    return int(fields[1]) if fields else None


# These run another command and wait for it: the one that asked is above them. The last is what our own drop-ins call
# themselves, which ask by the command line.
WRAPPERS = frozenset(
    {"timeout", "sudo", "uv", "time", "strace", "doas", "su", "runuser", "setpriv", "env", "nice", "flock"}
    | {"gpulease-shim"}
)


def requesting_process(pid: int, read_words: bool = True, read_scripts: bool = False) -> int:
    """The shell or script that asked, seen from its child `pid`, past subshells, wrappers and shells that only ask.

    A subshell is a fork without an exec, so it has its parent's `start_stack` and `arg_start`; a shell started
    inside a shell has its own. A shell only asks when its text has no other command (see `shell_text`).
    Its text is looked at with `read_words` alone, and files with `read_scripts`: the broker must not wait for what a
    stranger controls, as a process's command line, nor open what a stranger names.
    """
    child, requester = pid, parent_of(pid) or 1
    for _ in range(LEVELS):
        above = parent_of(requester) if requester > 1 else None
        if above is None or above <= 1:
            break
        if not same_program(requester, above):
            wraps = process_name(requester) in WRAPPERS
            if not wraps and not (read_words and _only_asks(requester, child, read_scripts)):
                break
            child = requester
        requester = above
    return requester


def above(pid: int) -> list[int]:
    """The process and those above it, the nearest first."""
    found = [pid]
    while len(found) < LEVELS and (parent := parent_of(found[-1])) is not None and parent > 1:
        found.append(parent)
    return found


def outer_pid(inside: int, pid: int) -> int | None:
    """What we call the process that `inside` calls `pid`: another number where `inside` is in a container.

    None when it is in one, and `pid` is none of the processes above it there.
    """
    depth = len(_numbers(inside))
    if depth <= 1:
        return pid
    for one in above(inside):
        numbers = _numbers(one)
        if len(numbers) == depth and numbers[-1] == pid:
            return one
    return None


def _numbers(pid: int) -> list[int]:
    """In our namespace, and in each one inside it that the process is in."""
    _, _, rest = (_read(f"/proc/{pid}/status") or b"").partition(b"\nNSpid:")
    return list(map(int, rest.partition(b"\n")[0].split()))


def _only_asks(pid: int, child: int, read_scripts: bool) -> bool:
    """Whether it is a shell that runs `child` and nothing else, as other programs start commands."""
    from gpulease.model.shell_text import only_command, text_or_script

    text, script = text_or_script(_words(pid))
    if text is None and script is not None and read_scripts:
        text = _script(pid, script)
    command = None if text is None else only_command(text)
    if command is None:
        return False
    name = command.rpartition("/")[2]
    # Else it may be a function, of which nobody knows what else it does; a command may have become another by `exec`.
    return name in {word.rpartition("/")[2] for word in _words(child)[:4]} or (read_scripts and _is_file(command))


def _is_file(command: str) -> bool:
    """Whether a command is found by the PATH, or is the path of a file."""
    folders = [""] if "/" in command else os.environ.get("PATH", "").split(":")
    return any(os.access(os.path.join(folder, command), os.X_OK) for folder in folders)


def _words(pid: int) -> list[str]:
    """Its command line; nothing when that is too long to be read at once."""
    line = _read(f"/proc/{pid}/cmdline") or b""
    return [] if len(line) >= READ else [word.decode(errors="replace") for word in line.split(b"\0")]


def _script(pid: int, path: str) -> str | None:
    """What the script says that `pid` runs, if it is a short file."""
    found = f"/proc/{pid}/cwd/{path}" if path[:1] != "/" else f"/proc/{pid}/root{path}"
    text = _read(found) if os.path.isfile(found) else None  # what is no file may wait, or be read only once
    return None if text is None or len(text) >= READ else text.decode(errors="replace")


def same_program(pid: int, other: int) -> bool:
    """Whether one was forked from the other and runs no program of its own."""
    mine, theirs = _fields(pid), _fields(other)
    if mine is None or theirs is None:
        return False
    # Fields 28 and 48 of /proc/PID/stat, counted from the state, which is field 3. 0 and 1 mean: not told.
    marks = [(fields[25], fields[45]) for fields in (mine, theirs)]
    return marks[0] == marks[1] and not {b"0", b"1"} & set(marks[0])


def process_name(pid: int) -> str:
    """Nothing when there is no such process."""
    line = _read(f"/proc/{pid}/stat") or b"()"
    return line[line.index(b"(") + 1 : line.rindex(b")")].decode(errors="replace")


def call_oneself(name: str) -> None:
    """The name that others see in `ps` and in /proc/PID/stat: at most 15 letters."""
    try:
        with open("/proc/self/comm", "w") as file:
            file.write(name)
    except OSError:
        return  # a name is a convenience


def _fields(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat behind the name: state, parent, ..."""
    line = _read(f"/proc/{pid}/stat")
    return None if line is None else line[line.rindex(b")") + 2 :].split()


def group_names(uid: int) -> tuple[str, ...]:
    """The groups of `uid` by name, its own first."""
    import grp
    import pwd

    try:
        entry = pwd.getpwnam(user_name(uid))
        numbers = os.getgrouplist(entry.pw_name, entry.pw_gid)
    except (KeyError, OSError):
        return ()
    names = []
    for number in numbers:
        try:
            names.append(grp.getgrgid(number).gr_name)
        except KeyError:
            names.append(str(number))
    return tuple(names)


class ProcessStat:
    """Where a process stands: its name, its state, its parent, its session, and when it began."""

    __slots__ = ("name", "parent", "session", "start_time", "state")

    def __init__(self, name: str, state: str, parent: int, session: int, start_time: int) -> None:
        self.name, self.state, self.parent, self.session, self.start_time = name, state, parent, session, start_time


def family(pid: int, proc: str = "/proc") -> ProcessStat | None:
    line = _read(f"{proc}/{pid}/stat")
    if line is None:
        return None
    name = line[line.index(b"(") + 1 : line.rindex(b")")].decode(errors="replace")
    fields = line[line.rindex(b")") + 2 :].split(None, 20)
    return ProcessStat(name, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


# -------------------------------------------------------------------- processes that end with a command below them

READABLE = 0o400


def ends_with(pid: int, owner: int, output: int = 1) -> bool:
    """Whether `owner` is `pid`, a wrapper around it, or the shell that was forked for the `$(…)` it is run in."""
    above: int | None = pid
    while above is not None and above > 1 and above != owner:
        above = parent_of(above)
    if above != owner:
        return False
    return owner == pid or process_name(owner) in WRAPPERS or _substitutes(owner, output)


def _substitutes(owner: int, output: int) -> bool:
    """Whether `owner` was forked for `$(…)`: it runs no program of its own, and its parent reads the output.

    A program that was started lives on after the command, whatever its parent reads: cron does.
    """
    shell = parent_of(owner)
    return shell is not None and same_program(owner, shell) and _reads(shell, output)


def _reads(pid: int, output: int) -> bool:
    """Whether `output` is a pipe whose other end `pid` has. Anybody may read /dev/null, or the terminal."""
    folder = f"/proc/{pid}/fd"
    try:
        pipe = os.fstat(output)
        return S_ISFIFO(pipe.st_mode) and any(_is_read_end(f"{folder}/{name}", pipe) for name in os.listdir(folder))
    except OSError:
        return False  # closed, or hidden from us: nobody knows, so nothing is refused


def _is_read_end(path: str, pipe: os.stat_result) -> bool:
    try:
        return bool(os.lstat(path).st_mode & READABLE) and os.path.samestat(os.stat(path), pipe)
    except UNSEEN:
        return False
