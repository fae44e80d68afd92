"""The one list of what an installation consists of, for the machine and for one user, with its man page."""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.resources import files as package_files
from textwrap import wrap

from gpulease import __version__
from gpulease.cli.argument_parser import make_parser, parsers_below
from gpulease.cli.commands import help
from gpulease.cli.commands.completion import SCRIPTS
from gpulease.cli.install.changes import Change, File, Target, number_of, sealed
from gpulease.cli.main import VERBS
from gpulease.cli.parsing import Namespace, print_json
from gpulease.errors import NotFound, StateError, in_words
from gpulease.planner import Policy
from gpulease.planner.settings import PARAMETERS, Settings
from gpulease.system.places import INSTALLED
from gpulease.system.places import SYSTEM_CONFIG as CONFIG
from gpulease.system.service import GROUP_KEY, ROOT_KEY

ACCOUNT = "gpulease"
HOME = "/var/lib/gpulease"
COMPLETIONS = {
    "bash": "bash-completion/completions/gpulease",
    "zsh": "zsh/site-functions/_gpulease",
    "fish": "fish/vendor_completions.d/gpulease.fish",
}
FOLDERS = [
    File(HOME, None, 0o700, ACCOUNT, data=True),
    File(f"{HOME}-launcher", None, 0o700, data=True),
    File(os.path.dirname(CONFIG), None, 0o755),
]
CONFIG_HEAD = """\
# Settings of gpulease. Every setting stands here with its default, commented out. To change one, remove the `#` before
# it and give a value, then run `{reload}`, or restart the broker. `gpulease set` shows what is in force
# and where it comes from. What is set with `gpulease set NAME VALUE` counts more than this file.

"""
FOR_LAUNCHER = f"""\
# These two count from the next start of the service on.
# whether root's own jobs are run: true or false
# {ROOT_KEY} = false

# only members of this group may use the socket: a name; without it everybody may
"""
MARK = """\
# The broker of this machine is installed. While this file is here no user's own broker starts instead of it.
"""
LIMITS = """\
# Limits may also stand here as tables, at the end of this file: [limits.user."*"], and below it lines as gpus = 4.
"""


def system(python: str, group: str | None = None, root: str = "/") -> list[File]:
    unit = _template("system.service").replace("@PYTHON@", unit_word(python))
    rows = [f"d {folder.path} {folder.mode:04o} {folder.owner} {folder.owner} -\n" for folder in FOLDERS]
    return [
        *FOLDERS,
        File(CONFIG, config("systemctl reload gpulease", FOR_LAUNCHER + _group_line(group)), settings=True),
        File(INSTALLED, sealed(MARK)),
        File("/etc/pam.d/gpulease", sealed(_template("pam").replace("@ACCOUNT@", _pam_account(root)))),
        File("/etc/systemd/system/gpulease.service", sealed(unit)),
        File("/etc/tmpfiles.d/gpulease.conf", sealed("".join(rows))),
        File("/etc/sysusers.d/gpulease.conf", sealed(f'u {ACCOUNT} - "gpulease broker" {HOME}\n')),
        *_for_shells("/usr/local/share", "root"),
    ]


def user(python: str, environ: Mapping[str, str]) -> list[File]:
    home = environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
    settings = _folder(environ, "XDG_CONFIG_HOME", f"{home}/.config")
    share = _folder(environ, "XDG_DATA_HOME", f"{home}/.local/share")
    unit = _template("user.service").replace("@PYTHON@", unit_word(python))
    return [
        File(f"{settings}/gpulease/config.toml", config("systemctl --user reload gpulease"), owner=None, settings=True),
        File(f"{settings}/systemd/user/gpulease.service", sealed(unit), owner=None),
        *_for_shells(share, None),
    ]


def _folder(environ: Mapping[str, str], name: str, usual: str) -> str:
    """What is not absolute does not count, by the rules of these variables."""
    asked = environ.get(name, "")
    return asked if os.path.isabs(asked) else usual


def config(reload: str, first: str = "") -> str:
    """Every setting with its meaning, from the table that the broker itself reads."""
    lines = [CONFIG_HEAD.format(reload=reload), first]
    for name, parameter in PARAMETERS.items():
        default = parameter.text_of(getattr(Policy() if parameter.policy else Settings(), parameter.field))
        lines += [f"# {line}\n" for line in wrap(f"{parameter.meaning}: {parameter.bounds}", 100)]
        lines += [f"# {name} = {json.dumps(default)}\n\n"]
    return sealed("".join([*lines, LIMITS]))


def _group_line(group: str | None) -> str:
    return f'# {GROUP_KEY} = "users"\n\n' if group is None else f"{GROUP_KEY} = {json.dumps(group)}\n\n"


def _for_shells(share: str, owner: str | None) -> list[File]:
    scripts = [File(f"{share}/{COMPLETIONS[shell]}", sealed(f"{SCRIPTS[shell]}\n"), 0o644, owner) for shell in SCRIPTS]
    return [*scripts, File(f"{share}/man/man1/gpulease.1", sealed(man_page(), '.\\"'), 0o644, owner)]


def _pam_account(root: str) -> str:
    """What this distribution asks of an account: Debian and SUSE call it so, Fedora and Arch otherwise."""
    for name in ("common-account", "system-auth"):
        if os.path.exists(os.path.join(root, "etc/pam.d", name)):
            return f"include   {name}"
    return "required  pam_unix.so"


def unit_word(path: str) -> str:
    """A path as a word of a unit file."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if any(letter in escaped for letter in " '\"\\;") else escaped


def _template(name: str) -> str:
    return package_files("gpulease.cli.install").joinpath("templates", name).read_text(encoding="utf-8")


# -------------------------------------------------------------------- what is told

DONE = {"make": "made", "replace": "replaced", "mode": "corrected", "remove": "removed"}
BESIDE = "Settings that were edited by hand stay, also with --force. The new version is beside them, as .new."
EDITED = "Files that were edited by hand stay. --force replaces them, and keeps each as .bak."
SUPERVISORS = """\
There is no systemd here. Have whatever supervises services run, as root:
  {command}
For example, one of:
  runit   mkdir -p /etc/sv/gpulease && \
printf '#!/bin/sh\\nexec {command} 2>&1\\n' > /etc/sv/gpulease/run && chmod +x /etc/sv/gpulease/run
  OpenRC  printf '#!/sbin/openrc-run\\nsupervisor=supervise-daemon\\ncommand={python}\\ncommand_args="{rest}"\\n' \
> /etc/init.d/gpulease && chmod +x /etc/init.d/gpulease
  cron    echo '@reboot root {command}' > /etc/cron.d/gpulease"""
BY_ITSELF = "There is no systemd here. A broker of your own starts by itself at first use; nothing is left to do."


def has_systemd() -> bool:
    return os.path.isdir("/run/systemd/system")


def start_commands(arguments: Namespace, python: str) -> list[str]:
    if arguments.root:
        return [f"systemctl --root={arguments.root} enable gpulease"]
    if not has_systemd():
        return [f"{python} -I -m gpulease broker --system"] if arguments.system else []
    manager = "systemctl" if arguments.system else "systemctl --user"
    linger = [] if arguments.system else ["loginctl enable-linger"]
    return [*linger, *(f"{manager} {word}" for word in ("daemon-reload", "enable gpulease", "restart gpulease"))]


def how_to_start(arguments: Namespace, then: list[str]) -> str:
    if arguments.root or has_systemd():
        return "\n".join(["Then run:", *(f"  {command}" for command in then)])
    if arguments.user:
        return BY_ITSELF
    python, _, rest = then[0].partition(" ")
    return SUPERVISORS.format(command=then[0], python=python, rest=rest)


def show(arguments: Namespace, target: Target, changes: list[Change], account: str | None, then: list[str]) -> bool:
    """As JSON, or for people: then the caller may have more to say."""
    if arguments.json:
        files = [{"path": target.path(change.file), **_about(change)} for change in changes]
        print_json({"dry_run": arguments.dry_run, "account": account, "files": files, "next": then}, 2)
        return False
    done = [(account, "the account gpulease")] if account else []
    done += [(change.action, target.path(change.file)) for change in changes if change.action in DONE]
    for action, what in done:
        print(f"would {action:<8} {what}" if arguments.dry_run else f"{DONE[action]:<10} {what}")
    edited = [change.file for change in changes if change.action == "edited"]
    for file in edited:
        print(f"left       {target.path(file)}")
    fresh = {change.file.path for change in changes if change.action != "remove"}
    beside = [file for file in edited if f"{file.path}.new" in fresh]
    if beside:
        print(BESIDE)
    if len(edited) > len(beside):
        print(EDITED)
    if not done:
        print("Nothing is to be changed." if arguments.dry_run else "Nothing was changed.")
    return not arguments.dry_run


def _about(change: Change) -> dict[str, object]:
    file = change.file
    return {"action": change.action, "backup": change.backup, "mode": f"{file.mode:04o}", "owner": file.owner}


NOBODY = 65534
PROGRAM = """
import sys, gpulease.broker.edge.server, pamela, pynvml
print(gpulease.__file__, pamela.__file__, pynvml.__file__, sys.prefix, sep="\\n")
"""
RECIPE = (
    "Install it for everybody: `python3 -m venv /opt/gpulease`, `/opt/gpulease/bin/pip install 'gpulease[system]'`, "
    "then `/opt/gpulease/bin/gpulease install --system`."
)
DEVICE_GROUPS = {"video", "render"}  # whose members may ask the driver, on some machines
PATIENCE = 60.0
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def check_python(python: str) -> None:
    """Every user can run it, and root alone can change it: it runs as root, and as each of them."""
    try:
        tried = subprocess.run(
            [python, "-I", "-c", PROGRAM], cwd="/", env={}, user=NOBODY, group=NOBODY, extra_groups=[],
            capture_output=True, text=True, timeout=PATIENCE, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as trouble:
        said = (getattr(trouble, "stderr", "") or in_words(trouble)).strip().splitlines()
        folder = shlex.quote(os.path.dirname(os.path.dirname(python)))
        step = f"{RECIPE} If that was done under a strict umask: `chmod -R a+rX {folder}`."
        raise StateError(f"Other users cannot run gpulease with {python}: {said[-1][:200]}.", step) from None
    for path in (python, *tried.stdout.splitlines()):
        stranger = _untrusted_writer(path)
        if stranger:
            raise StateError(f"The service would run what {stranger}.", RECIPE)


def _untrusted_writer(path: str) -> str | None:
    """Who besides root can change what lies at `path`. Groups are trusted: Debian's `staff` may write in /usr/local."""
    for start in {os.path.abspath(path), os.path.realpath(path)}:
        while True:
            seen = os.stat(start)
            if seen.st_uid != 0:
                return f"user {seen.st_uid} can change: {start}"
            if seen.st_mode & 0o002 and not seen.st_mode & 0o1000:
                return f"everybody can change: {start}"
            if start == "/":
                break
            start = os.path.dirname(start)
    return None


def check_group(name: str) -> None:
    try:
        grp.getgrnam(name)
    except KeyError:
        raise NotFound(f"There is no group {name[:40]!r}.", f"Make it first: `groupadd {name[:40]}`.") from None


def account_exists() -> bool:
    return number_of(ACCOUNT) is not None


def make_account() -> None:
    groups = {entry.gr_name for entry in grp.getgrall()}
    shell = shutil.which("nologin", path=PATH) or "/bin/false"
    own_group = ["--gid", ACCOUNT] if ACCOUNT in groups else ["--user-group"]
    more = ["--groups", ",".join(groups & DEVICE_GROUPS)] if groups & DEVICE_GROUPS else []
    about = ["--no-create-home", "--home-dir", HOME, "--shell", shell, "--comment", "gpulease broker"]
    _call(["useradd", "--system", *own_group, *more, *about, ACCOUNT])


def remove_account() -> None:
    _call(["userdel", ACCOUNT])


def _call(words: list[str]) -> None:
    try:
        subprocess.run(words, env={"PATH": PATH}, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError) as trouble:
        why = (getattr(trouble, "stderr", "") or in_words(trouble)).strip()[:200]
        raise StateError(
            f"`{words[0]}` failed: {why}", f"Run `{shlex.join(words)}` yourself, then try again."
        ) from None


EXIT_CODES = {
    "0": "done",
    "N": "the exit code of the command that gpulease ran (128+n for signal n)",
    "1": "it failed, or what you named does not exist",
    "2": "wrong usage",
    "69": "no broker or no driver",
    "75": "not granted in time, or not free now",
    "77": "not permitted",
}
HEAD = f"""\
.TH GPULEASE 1 "" "gpulease {__version__}"
.SH NAME
gpulease \\- share the GPUs of a server among people and programs
.SH SYNOPSIS
.B gpulease
.RI [ VERB "] [" OPTIONS ]
.SH DESCRIPTION
Every use of a GPU is a lease: a command, a script's variable, a queued job,
a reservation.
Each waits in one queue, holds its GPUs, and releases them when its owner ends.
Without a verb, gpulease shows the status.
.PP
.B gpulease help
lists pages to read: a tutorial, how-to pages, concepts and references.
.SH VERBS
"""
FILES = {
    "/etc/gpulease/config.toml": "settings of the machine's broker",
    "~/.config/gpulease/config.toml": "settings of a user's own broker",
    "/run/gpulease": "socket of the machine's broker",
    "/var/lib/gpulease": "state of the machine's broker",
    "$XDG_RUNTIME_DIR/gpulease": "socket of a user's own broker",
    "~/.local/state/gpulease/HOST": "state, and logs of jobs, of a user's own broker",
    "$GPULEASE_DIR": "all of these in one folder, where it is set",
}


def helps() -> Iterator[tuple[str, list[str]]]:
    """Each verb with its help, and that of the verbs below it."""
    for verb in VERBS:
        parser = make_parser(verb)
        yield verb, [one.format_help().rstrip() for one in (parser, *parsers_below(parser).values())]


def man_page() -> str:
    parts = [HEAD]
    for verb, texts in helps():
        parts.append(f".SS gpulease {_escaped(verb)}\n")
        parts.append(".PP\n".join(f".nf\n{_escaped(text)}\n.fi\n" for text in texts))
    parts += [_section("EXIT STATUS", EXIT_CODES), _section("ENVIRONMENT", _variables()), _section("FILES", FILES)]
    return "".join([*parts, ".SH SEE ALSO\n.BR nvidia\\-smi (1)\n"])


def _section(name: str, meanings: Mapping[str, str]) -> str:
    rows = (f".TP\n.B {_escaped(word)}\n{_escaped(meaning)}\n" for word, meaning in meanings.items())
    return f".SH {name}\n{''.join(rows)}"


def _variables() -> dict[str, str]:
    """As the page about settings has them."""
    rows = re.findall(r"^\| (`[A-Z_`, ]+) \| (.*?) \| (.*?) ?\|$", help.read("reference/settings"), re.MULTILINE)
    return {
        _plain(name): _plain(text) + (f" (default: {_plain(usual)})" if usual else "") for name, text, usual in rows
    }


def _plain(text: str) -> str:
    """Without Markdown's marks."""
    return re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", text).replace("`", "")


def _escaped(text: str) -> str:
    """As it stands: no word of it is a request of roff, and a hyphen can be copied into a shell."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("^", "\\(ha")
    lines = [f"\\&{line}" if line[:1] in (".", "'") else line for line in plain.replace("~", "\\(ti").split("\n")]
    return "\n".join(lines)
