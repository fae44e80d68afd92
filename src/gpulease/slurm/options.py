"""PURE: a request and the options of jobs as arguments of sbatch, srun and salloc.

What Slurm has no word for is refused here, with what to do instead. GPUs are of one node, as on one machine,
unless the user's own options name more nodes.
"""

from __future__ import annotations

import time

from gpulease.errors import NotOnEngine, SlurmUnavailable
from gpulease.slurm import commands

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from gpulease.slurm.records import Records

MARK = "gpulease "  # begins the comment of what was asked for by gpulease
NICE = 100  # of Slurm, for one step of priority
USUAL = 5  # priority
NODES = ("--nodes", "-N")
APPEND = "--open-mode=append"  # a job that is started again keeps what it had written
LONGEST_COMMENT = 4000  # characters
INSIDE = "Take whole GPUs, and share them inside: `gpulease run --engine slurm -- gpulease add --mem ...` in a job."
# field of a request -> what is said of it
REFUSED = {
    "memory": ("Slurm gives whole GPUs, no shares by memory.", INSIDE),
    "pack": ("Slurm gives whole GPUs, and packs no jobs.", INSIDE),
    "devices": ("Slurm chooses the devices itself.", "Leave the devices out; name a kind of GPU by its model."),
    "exclude": ("Slurm chooses the devices itself.", "Exclude none; name a kind of GPU by its model."),
    "min_memory": ("Slurm does not know how much memory a GPU has.", "Name the kind of GPU by its model."),
    "max_leases": ("Slurm gives whole GPUs, no shares by memory.", INSIDE),
    "mig": ("On Slurm a MIG instance is a GPU of a type of its own.", "Ask for it by its model, as 1g.10gb."),
    "beside_outside": ("Slurm does not know of outside use.", "Leave `beside-outside` out."),
}


def resources(request: Mapping[str, Any], kind: str | None, own: Sequence[str] = ()) -> list[str]:
    """For all three commands. `kind`: Slurm's name of the GPU's model, or None for any.

    `own`: the user's options, which come behind these. If they name a number of nodes, a job has a task on each.
    """
    for name, (what, next_step) in REFUSED.items():
        if request.get(name):
            raise NotOnEngine(what, next_step)
    gpus = request.get("gpus", 1)
    words = ["--ntasks-per-node=1"] if any(word.startswith(NODES) for word in own) else ["--nodes=1", "--ntasks=1"]
    if gpus:
        words.append(f"--gres=gpu:{kind}:{gpus}" if kind else f"--gres=gpu:{gpus}")
    priority = request.get("priority", USUAL)
    if priority != USUAL:
        words.append(f"--nice={(priority - USUAL) * NICE}")
    if request.get("not_before"):
        words.append(f"--begin={at(request['not_before'])}")
    return words


def at(moment: float) -> str:
    """As Slurm reads it, in local time."""
    from time import localtime, strftime

    return strftime("%Y-%m-%dT%H:%M:%S", localtime(moment))


def minutes(seconds: float) -> int:
    """Slurm counts in minutes: so many that it is not less."""
    return max(1, -int(-seconds // 60))


def batch(
    request: Mapping[str, Any],
    options: Mapping[str, Any],
    kind: str | None,
    count: int,
    after: list[str],
    log: str,
    preempts: bool = False,
    own: Sequence[str] = (),
) -> list[str]:
    """The arguments of sbatch for `count` jobs; `after` are ids, as Slurm has them. `preempts`: see Site."""
    words = ["sbatch", "--parsable", *resources(request, kind, own), f"--chdir={options['cwd']}"]
    words += [f"--output={log}", "--export=ALL"]
    # A node that fails must not run a job twice unless it may be run again. Where jobs make room for others, the site
    # says whether they go back into the line; the script tells the one from the other.
    words += ["--requeue", APPEND] if options.get("retry") else [APPEND] if preempts else ["--no-requeue"]
    words += [f"--time={minutes(options['time_limit'])}"] if options.get("time_limit") else []
    words += ["--hold"] if options.get("hold") else []
    if after:
        how = "afterany" if options.get("after_any") else "afterok"
        words += [f"--dependency={how}:{':'.join(after)}", "--kill-on-invalid-dep=yes"]
    if count > 1:
        cap = f"%{options['at_most']}" if options.get("at_most") else ""
        words.append(f"--array=0-{count - 1}{cap}")
    return words


def comment(fields: Mapping[str, Any]) -> str:
    """What a job is known by, for everybody who looks; a long command is cut, and then a long note."""
    from gpulease.protocol.wire import to_text

    kept = {name: value for name, value in fields.items() if value not in (None, 0, "", [])}
    for name in ("command", "note", "label"):
        if len(to_text(kept)) <= LONGEST_COMMENT:
            break
        kept.pop(name, None)
    return MARK + to_text(kept)


def pattern(log: str | None, folder: str, count: int) -> str:
    """Where the output goes, as sbatch wants it: `%` is its own sign. A folder gets a file for each job."""
    name = "%A_%a.log" if count > 1 else "%j.log"
    if log is None:
        return f"{folder.replace('%', '%%')}/{name}"
    return log.replace("%", "%%") + (name if log.endswith("/") else "")


# field of `edit` -> Slurm's name for it
CHANGES = {"name": "JobName", "time_limit": "TimeLimit", "cwd": "WorkDir", "at_most": "ArrayTaskThrottle"}
UNCHANGED = {
    "command": ("Slurm cannot give a job another command.", "Kill it, and add it again."),
    "retry": ("How often it is tried is fixed when a job is added to Slurm.", "Kill it, and add it again."),
    "label": ("A label is fixed when a job is added to Slurm.", "Kill it, and add it again."),
    "note": ("A note is fixed when a job is added to Slurm.", "Kill it, and add it again."),
    "request.gpus": ("How many GPUs it gets is fixed when a job is added to Slurm.", "Kill it, and add it again."),
    "request.models": ("The kind of GPU is fixed when a job is added to Slurm.", "Kill it, and add it again."),
}


def changes(given: Mapping[str, Any], after: list[str]) -> list[str]:
    """The words of `scontrol update` behind the id."""
    request = given.get("request") or {}
    for name in (*given, *(f"request.{name}" for name in request)):
        if name in UNCHANGED:
            raise NotOnEngine(*UNCHANGED[name])
    words = [f"{CHANGES[name]}={_value(name, given[name])}" for name in CHANGES if name in given]
    if "after" in given or "after_label" in given:
        how = "afterany" if given.get("after_any") else "afterok"
        words.append(f"Dependency={f'{how}:' + ':'.join(after) if after else ''}")
    for name in request:
        if name == "priority":
            words.append(f"Nice={(request[name] - USUAL) * NICE}")
        elif name == "not_before":
            words.append(f"StartTime={'now' if request[name] is None else at(request[name])}")
        elif request[name] and name != "relative":
            raise NotOnEngine(*REFUSED.get(name, ("Slurm cannot change this of a job.", "Kill it, and add it again.")))
    return words


def _value(name: str, value: Any) -> str:
    if name == "time_limit":
        return "UNLIMITED" if value is None else str(minutes(value))
    return str(0 if value is None else value)


# -------------------------------------------------------------------- the site

HOUR = 3600.0
ASKED = ["scontrol", "show", "config"]
KEPT = ("ProctrackType", "PreemptType")


class Site:
    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    @property
    def signals_script_alone(self) -> bool:
        """With control groups Slurm sends SIGTERM to the first process of a job only, else to all of them."""
        return self._values.get("ProctrackType") == "proctrack/cgroup"

    @property
    def preempts(self) -> bool:
        """Whether a job that runs may have to make room for another."""
        return self._values.get("PreemptType", "preempt/none") != "preempt/none"


def site(records: Records) -> Site:
    """Nothing is known where Slurm does not tell; it then refuses the job too."""
    kept = records.kept_site()
    now = time.time()
    if kept is not None and 0 <= now - kept[0] < HOUR:
        return Site(kept[1])
    try:
        values = read(commands.output_of(ASKED))
    except SlurmUnavailable:
        return Site(kept[1] if kept else {})
    found = {name: values[name] for name in KEPT if name in values}
    records.keep_site(found, now)
    return Site(found)


def read(text: str) -> dict[str, str]:
    """PURE: lines as `ProctrackType           = proctrack/cgroup`."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}
