"""Finds the gpulease command, runs it and reads what it prints: for the drop-ins that `gpulease shims` writes.

For Python 3.6 and newer, with the standard library only, since old programs import it.
"""

import json
import os
import shlex
import signal
import subprocess
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

COMMAND = []  # type: List[str]  # `gpulease shims` writes here how gpulease is run

FAILED = 1  # exit codes of gpulease
USAGE = 2
UNAVAILABLE = 69
NOT_GRANTED = 75
NOT_PERMITTED = 77

MEND = "Run `gpulease shims` again, or set GPULEASE to the command."

NEXT_TRY = 0.1  # seconds
NEXT_LOOK = 3.0  # seconds in which the broker sees what a fresh status shows; it looks each second

Completed = NamedTuple("Completed", [("code", int), ("out", str), ("err", str)])


class GpuleaseFailed(Exception):
    """gpulease ended with another exit code than 0: what happened, and what to do about it."""

    def __init__(self, code: int, what: str, next_step: str) -> None:
        super().__init__("{} {}".format(what, next_step).strip())
        self.code, self.what, self.next_step = code, what, next_step


class Document(Dict[str, Any]):
    """What gpulease answered; without a key that each answer has, something else did."""

    def __missing__(self, key: str) -> Any:
        raise _not_gpulease()


def command() -> List[str]:
    """What runs gpulease: as it was filled in, else GPULEASE of the environment, else `gpulease` of the PATH."""
    if COMMAND and os.path.exists(COMMAND[0]):
        return list(COMMAND)
    given = os.environ.get("GPULEASE", "")
    try:
        return shlex.split(given) or ["gpulease"]
    except ValueError:
        raise GpuleaseFailed(UNAVAILABLE, "GPULEASE is {!r}, which is no command.".format(given), MEND)


def run(*words: str, stdin: Optional[int] = subprocess.DEVNULL, quiet: bool = True) -> Completed:
    """One command, to its end; `quiet`: what it says on stderr is returned instead of shown."""
    stderr = subprocess.PIPE if quiet else None
    found = command()
    try:
        done = subprocess.run(found + list(words), stdin=stdin, stdout=subprocess.PIPE, stderr=stderr)
    except OSError as trouble:
        raise _not_started(found, trouble)
    if done.returncode != 0 and _text(done.stderr).endswith("No module named gpulease\n"):
        raise GpuleaseFailed(UNAVAILABLE, "There is no gpulease for {}.".format(found[0]), MEND)
    return Completed(done.returncode, _text(done.stdout), _text(done.stderr))


def _not_started(words: List[str], trouble: OSError) -> GpuleaseFailed:
    if isinstance(trouble, FileNotFoundError):
        return GpuleaseFailed(UNAVAILABLE, "There is no command {}.".format(words[0]), MEND)
    what = "The command {} cannot be run: {}.".format(words[0], trouble.strerror)
    return GpuleaseFailed(UNAVAILABLE, what, MEND)


def _not_gpulease() -> GpuleaseFailed:
    tried = " ".join(map(shlex.quote, command()))
    return GpuleaseFailed(UNAVAILABLE, "The command {} does not answer as gpulease does.".format(tried), MEND)


def ask(*words: str, quiet: bool = True) -> Any:
    """The document that a command prints with --json; GpuleaseFailed if it fails."""
    before, behind = _apart(words)
    done = run(*before, "--json", *behind, quiet=quiet)
    if done.code != 0:
        raise failure(done)
    try:
        return Document(json.loads(done.out))
    except (TypeError, ValueError):
        raise _not_gpulease()


def failure(done: Completed) -> GpuleaseFailed:
    """The error in what a command said, of which the last two lines are what happened and what to do."""
    lines = done.err.strip().splitlines() or ["gpulease ended with exit code {}.".format(done.code)]
    begins = [number for number, line in enumerate(lines) if line.startswith("gpulease")] or [0]
    what = lines[begins[-1]].partition(": ")[2] or lines[begins[-1]]
    return GpuleaseFailed(done.code, what, " ".join(lines[begins[-1] + 1 :]))


def get(count: int, owner: int, *words: str, quiet: bool = True) -> Dict[str, Any]:
    """A lease for the process `owner`: `id` and `devices` (`index label uuid …`)."""
    return Document(ask("get", "-n", str(count), "--owner", str(owner), *words, quiet=quiet))


def release(*what: str) -> None:
    ask("release", *what)


def status() -> Dict[str, Any]:
    return _without_placeholders(Document(ask("status")))


def fresh_status() -> Dict[str, Any]:
    """The status, with the devices as they are now and not as the broker last saw them."""
    return _without_placeholders(Document(ask("status", "--fresh")))


def _without_placeholders(document: Dict[str, Any]) -> Dict[str, Any]:
    """What the broker itself puts on leased devices, for safe-gpu's users to see, is nobody's use."""
    safe_gpu = (document.get("neighbours") or {}).get("safe-gpu") or {}
    placed = set((safe_gpu.get("placeholders") or {}).values())
    for device in document["devices"] if placed else ():
        seen = device["processes"]
        device["processes"] = seen and [process for process in seen if process["pid"] not in placed]
    return document


def devices_of_lease(document: Dict[str, Any], lease: Optional[str]) -> List[Dict[str, Any]]:
    """The devices of a status that a lease of that id holds whole, in the lease's order."""
    held = [row for row in document["leases"] if row["id"] == lease and row["memory"] is None]
    by_uuid = {device["uuid"]: device for device in document["devices"]}
    return [by_uuid[uuid] for row in held for uuid in row["devices"] if uuid in by_uuid]


def computing(device: Dict[str, Any]) -> int:
    """How many processes compute on a device; memory in use that none explains counts as one."""
    seen = sum(not process["graphics"] for process in device["processes"] or ())
    return seen or int(device["state"] == "outside")


def end_with_reader() -> None:
    """For commands: `| head -1` ends them without a word, as it does other programs."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def pass_by() -> None:
    """For commands that ask for others: who asks, or gives back, is then found above this process."""
    try:
        with open("/proc/self/comm", "w") as file:
            file.write("gpulease-shim")
    except OSError:
        pass


def exec_gpulease(*words: str) -> None:
    """Become a gpulease command: same pid, same terminal, its exit code."""
    found = command()
    try:
        os.execvp(found[0], found + list(words))
    except OSError as trouble:
        raise _not_started(found, trouble)


def show_devices(devices: Sequence[Dict[str, Any]]) -> str:
    """Set CUDA_VISIBLE_DEVICES to indices, which old programs read as numbers, in the order that gives them meaning.

    An instance of a divided GPU has no such number and is named by UUID.
    """
    by_index = all(device["label"].isdigit() for device in devices)
    shown = ",".join(device["label" if by_index else "uuid"] for device in devices)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ["CUDA_VISIBLE_DEVICES"] = shown
    return shown


def _apart(words: Sequence[str]) -> Any:
    """Options, and what stands behind `--`."""
    place = words.index("--") if "--" in words else len(words)
    return list(words[:place]), list(words[place:])


def state_folder() -> str:
    """Where a user's own broker of this host keeps its state."""
    base = os.environ.get("XDG_STATE_HOME") or ""
    base = base if os.path.isabs(base) else os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "gpulease", os.uname().nodename)


def _text(data: Optional[bytes]) -> str:
    return (data or b"").decode("utf-8", "replace")
