"""Calls of a host's own gpulease by the `ssh` command, with the user's config, keys, agent and jump hosts.

One connection a host is kept open (ControlMaster), so that the next call takes tens of milliseconds. Nothing is asked
on the terminal, and a host key that is new or has changed is never accepted: what ssh says of it becomes an error.
A node of the Slurm job in which this process runs is reached by `srun` instead.
Not for: which hosts there are, and what is made of the answers (`hosts`).
"""

from __future__ import annotations

import os
import time

from gpulease.errors import HostUnavailable, UsageError
from gpulease.model.shell_text import quoted
from gpulease.system import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpulease.errors import GpuleaseError

DEADLINE = 10.0  # seconds for a host's answer, and to be let in
KEPT = 600  # seconds that an idle connection stays
LONGEST_FOLDER = 40  # bytes of the folder of a connection's socket: ssh adds 58
LOST = 255  # how ssh itself ends when it fails
PID = "gpulease-pid"  # begins the line on stderr by which the other side tells its process
# Letters of a host's name, an address or `user@host`: nothing that the shell of a ProxyCommand would read.
NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.@:[]")
MISSING = "gpulease: There is no gpulease on "
# It is run by sh, whatever shell the user has there: host, folder, program, variables, `--`, words of gpulease.
SCRIPT = f"""\
host=$1 folder=$2 program=$3
shift 3
PATH="$PATH:$HOME/.local/bin:/usr/local/bin"
export PATH
while [ "$1" != -- ]; do
    case $1 in
    PATH=*) PATH="${{1#PATH=}}:$PATH" ;;
    NO_COLOR=* | COLUMNS=*) export "$1" ;;
    *) [ -d "${{1#*=}}" ] || {{
        echo "gpulease: The environment ${{1#*=}} does not exist on $host." >&2
        echo "Make it there, or leave it first (deactivate)." >&2
        exit 2
    }}
    export "$1" ;;
    esac
    shift
done
shift
command -v gpulease >/dev/null 2>&1 || {{
    echo "{MISSING}$host." >&2
    echo "Install it there, where a command given to ssh finds it, as /usr/local/bin." >&2
    exit 69
}}
[ -z "$folder" ] || cd -- "$folder" 2>/dev/null || {{
    echo "gpulease: The folder '$folder' does not exist on $host." >&2
    echo "Make it there, or go to one that both machines have." >&2
    exit 2
}}
[ -z "$program" ] || command -v -- "$program" >/dev/null 2>&1 || {{
    echo "gpulease: There is no command '$program' on $host." >&2
    echo "Check the spelling, or give the full path." >&2
    exit 1
}}
"""
OF_OUTPUT = ("NO_COLOR", "COLUMNS")  # how this command is to look
ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX")  # folders that a job needs, and that are checked to be there


def command(host: str, remote: str, terminal: bool = False, *more: str) -> list[str]:
    """The words of a call. `remote` is a command for the user's shell there."""
    if not host or host.startswith("-") or not NAME.issuperset(host):
        raise UsageError(f"{host[:40]!r} is not a host name.", "Give one that `ssh` accepts.")
    if is_node(host):
        return srun_command(host, remote, remote_words(host, ["events"]), terminal)
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "ConnectTimeout": f"{patience() + 0.5:.0f}",
        "LogLevel": "ERROR",  # no banner among what a command says
        "RemoteCommand": "none",
        "ClearAllForwardings": "yes",
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "3",
        "ControlMaster": "auto",
        "ControlPath": os.path.join(folder(), "%C"),
        "ControlPersist": str(KEPT),
    }
    words = [f"-o{name}={value}" for name, value in options.items()]
    return [*_ssh(), "-t" if terminal else "-T", *words, *more, "--", host, *([remote] if remote else [])]


def is_node(host: str) -> bool:
    """Whether it is one of the Slurm job in which this process runs."""
    return host in nodes()


def patience() -> float:
    """Seconds for a host's answer."""
    try:
        return max(0.1, float(os.environ.get("GPULEASE_HOST_TIMEOUT") or DEADLINE))
    except ValueError:
        raise UsageError("GPULEASE_HOST_TIMEOUT is not a number.", "Give seconds, as 10.") from None


def _ssh() -> list[str]:
    named = os.environ.get("GPULEASE_SSH")
    if not named:
        return ["ssh"]
    import shlex

    try:
        return shlex.split(named) or ["ssh"]
    except ValueError:
        raise UsageError("GPULEASE_SSH is not a command.", "Write it as a shell would read it: ssh -F FILE.") from None


def folder() -> str:
    """Private to this user: who can write there could answer for every host."""
    run = places.own(os.environ).run
    folder = os.path.join(run, "ssh")
    usable = os.access(run, os.W_OK) or not os.path.exists(run)
    if len(os.fsencode(folder)) > LONGEST_FOLDER or not usable:
        folder = f"/tmp/gpulease-ssh-{os.getuid()}"
    elif not os.path.isdir(run):
        places.prepare(run, everyone=False)
    places.prepare(folder, everyone=False)
    return folder


def remote_words(
    host: str,
    words: Sequence[str],
    folder: str | None = None,
    environ: Mapping[str, str] | None = None,
    program: str = "",
    tell_pid: bool = False,
) -> str:
    """The command that runs `gpulease WORDS` there; in `folder`, and with the environment of ours that is active.

    `program` is one that must be there too. With `tell_pid` the first line on its stderr names its process.
    """
    variables = [f"{name}={os.environ[name]}" for name in OF_OUTPUT if os.environ.get(name)]
    for name in ENVIRONMENTS if environ is not None else ():
        if environ and environ.get(name):
            variables += [f"{name}={environ[name]}", f"PATH={environ[name]}/bin"]
    script = SCRIPT + (f'echo "{PID} $$" >&2\n' if tell_pid else "") + 'exec gpulease "$@"'
    said = ["sh", "-c", script, "gpulease", host, folder or "", program, *variables, "--", *words]
    return "exec " + " ".join(map(quoted, said))


def failure(host: str, said: str) -> GpuleaseError:
    """What ssh's last words mean, in one sentence, and what to do."""
    lines = [line.strip() for line in said.replace("\r", "\n").split("\n") if line.strip()]
    last = _clean(lines[-1]) if lines else "it said nothing"
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in said:
        where = next((line for line in lines if line.startswith("Offending")), "")
        known = f" ({_clean(where.partition(' in ')[2])})" if where else ""
        return HostUnavailable(
            f"The host key of {host} has changed: it is not the one that ssh knows{known}, so nothing was sent.",
            f"Ask who runs {host}. If the new key is right, remove the old one (`ssh-keygen -R`) and run `ssh {host}`.",
            host=host,
        )
    known_causes = (
        ("Host key verification failed", "ssh does not know the host key of {0} yet.", "Run `ssh {0}` once."),
        (
            "Permission denied",
            "{0} takes no key of yours; a password is not asked for here.",
            "Load your key (`ssh-add`), or bring it there with `ssh-copy-id {0}`.",
        ),
        ("Could not resolve hostname", "ssh knows no host {0}.", "Check its name, or add it to ~/.ssh/config."),
    )
    for sign, what, step in known_causes:
        if sign in said:
            return HostUnavailable(what.format(host), step.format(host), host=host)
    return HostUnavailable(f"{host} cannot be reached: {last[:200]}", f"See what `ssh {host}` says.", host=host)


def silent(host: str, how: str = "does not answer") -> HostUnavailable:
    return HostUnavailable(f"{host} {how}.", f"See what `ssh {host}` says.", host=host)


# What becomes of a verb whose connection is lost, and how it is found again.
GOES_ON = {
    "run": "The command goes on there: see `gpulease --host {0} status`. A job of `gpulease add` needs no connection.",
    "add": "It may have been queued: see `gpulease --host {0} ls` before you add it again.",
    "wait": "Jobs there go on. Ask again when {0} can be reached.",
}
GOES_ON["log"] = GOES_ON["wait"]


def lost(host: str, verb: str, terminal: bool = False) -> HostUnavailable:
    """The error for a connection that ended in the middle of a verb."""
    step = GOES_ON.get(verb, "When {0} can be reached, see the result with `gpulease --host {0} status`.")
    if terminal and verb in ("run", "shell"):
        step = "The command there got a signal to end, as with ssh itself. See `gpulease --host {0} status`."
    return HostUnavailable(f"The connection to {host} was lost.", step.format(host), host=host)


def _clean(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text).strip()


def no_ssh() -> HostUnavailable:
    return HostUnavailable(
        f"There is no command {_ssh()[0]!r} here.", "Install it: `apt-get install openssh-client` (Debian, Ubuntu)."
    )


START = 60.0  # seconds for a step, and a broker in it, to begin
CHECK_INTERVAL = 0.05  # seconds between looks whether it has
READY = "ready"


def nodes(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Their names; none outside of a job."""
    if not environ.get("SLURM_JOB_ID"):
        return []
    from gpulease.slurm import fields

    return fields.hosts(environ.get("SLURM_JOB_NODELIST", ""))


def srun_command(node: str, remote: str, events: str, terminal: bool = False) -> list[str]:
    """The words that run `remote` there, once a broker serves it; `events` is a call that starts one."""
    _ensure_broker(node, events)
    return [*_step(node), *(["--pty"] if terminal else []), "sh", "-c", remote]


def _step(node: str) -> list[str]:
    return ["srun", "--quiet", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}"]


def _ensure_broker(node: str, events: str) -> None:
    """The step that stays holds a lock as long as it is there; the process that gets the lock starts it."""
    import fcntl

    own = places.own(os.environ)
    places.prepare(own.run, everyone=False)
    path = os.path.join(own.run, f"node-{node}")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    else:
        os.ftruncate(lock, 0)
        _start_step(node, events, lock)
    try:
        _wait_until_ready(node, lock)
    finally:
        os.close(lock)


def _start_step(node: str, events: str, lock: int) -> None:
    from gpulease.slurm import commands

    script = f"({events}) >/dev/null 2>&1; echo {READY}; exec sleep infinity"
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    actions = [(os.POSIX_SPAWN_DUP2, one, number) for number, one in enumerate((null, lock, null))]
    try:
        commands.spawn([*_step(node), "sh", "-c", script], actions, os.environ, apart=True)
    finally:
        os.close(null)


def _wait_until_ready(node: str, lock: int) -> None:
    until = time.monotonic() + START
    while not os.pread(lock, len(READY), 0):
        if time.monotonic() > until:
            raise HostUnavailable(
                f"No step of Slurm's could be started on {node}.",
                f"See what `srun --overlap --nodelist={node} true` says.",
                host=node,
            )
        time.sleep(CHECK_INTERVAL)
