"""What people type by habit or by mistake, and what it is called here."""

from __future__ import annotations

from collections.abc import Iterable

# an option of another tool, or an older one of ours -> options here; the first that the verb has is meant
OPTIONS = {
    "--name": ("--model", "--label"),
    "--name-like": ("--model",),
    "--name-job": ("--name",),
    "--job-name": ("--name",),
    "-J": ("--name",),
    "--gpu": ("--gpus", "--devices"),
    "--gres": ("--gpus",),
    "--num-gpus": ("--gpus",),
    "--ngpus": ("--gpus",),
    "--count": ("--gpus",),
    "-c": ("--gpus",),
    "-g": ("--gpus",),
    "-G": ("--gpus",),
    "--gpu-id": ("--devices",),
    "--gpu-ids": ("--devices",),
    "--ids": ("--devices",),
    "--memory": ("--mem", "--min-memory"),
    "--gpu-memory": ("--mem", "--min-memory"),
    "--gpu-mem": ("--mem", "--min-memory"),
    "--time": ("--time-limit", "--for"),
    "-t": ("--time-limit", "--for", "--tail", "--state"),
    "-u": ("--user",),
    "--wrap": ("--shell",),
    "--duration": ("--for",),
    "--timeout": ("--wait", "--time-limit"),
    "--dependency": ("--after",),
    "--begin": ("--at",),
    "--output": ("--log",),
    "-o": ("--log",),
    "--chdir": ("--cwd",),
    "--workdir": ("--cwd",),
    "--retries": ("--retry",),
    "--array": ("--sweep",),
    "--nice": ("--priority",),
    "--export-env": ("--export",),
    "--comment": ("--note",),
    "--watch": ("--follow",),
    "--exclude-devices": ("--exclude",),
}

QUEUE = "The queue is `gpulease ls`."
GPUS = "`gpulease status` shows the GPUs, their users and processes."
WATCH = "`gpulease top` shows the machine as it changes."
QUEUED = "`gpulease add -- CMD` queues a command."
RUN = "`gpulease run -- CMD` waits for a GPU and runs a command on it."
END = "`gpulease kill ID` ends a job; `gpulease ls` has the ids."
LOG = "`gpulease log ID` prints a job's output, with -f as it grows."
TAKE = "`gpulease get` takes a GPU for this script; `gpulease run -- CMD` for a command."
CONTAINER = "Write `gpulease run -- sh -c 'docker run $(gpulease docker-args) IMAGE'`; see `gpulease help containers`."
# what somebody types as a verb -> what does that here
HABITS = {
    **dict.fromkeys(("queue", "squeue", "qstat", "q", "ps", "jobs", "list"), QUEUE),
    **dict.fromkeys(("nvidia-smi", "smi", "sinfo", "info", "gpus", "devices", "who", "gpustat"), GPUS),
    **dict.fromkeys(("htop", "nvtop", "nvitop", "watch", "monitor"), WATCH),
    **dict.fromkeys(("sbatch", "qsub", "enqueue", "batch", "schedule"), QUEUED),
    **dict.fromkeys(("srun", "exec", "launch"), RUN),
    **dict.fromkeys(("cancel", "scancel", "qdel", "kill-job", "killjob", "end", "abort", "terminate"), END),
    **dict.fromkeys(("logs", "tail", "output", "follow", "attach", "cat"), LOG),
    **dict.fromkeys(("acquire", "take", "lock", "alloc", "allocate", "reserve", "lease"), TAKE),
    **dict.fromkeys(("free", "unlock", "return"), "`gpulease release` gives GPUs back."),
    **dict.fromkeys(("salloc", "interactive", "bash"), "`gpulease shell` is a shell that holds GPUs."),
    **dict.fromkeys(("remove", "delete", "del"), "`gpulease rm ID` removes a job from the queue."),
    **dict.fromkeys(("rerun", "requeue", "restart"), "`gpulease retry ID` queues a job again."),
    **dict.fromkeys(("suspend", "hold", "scontrol"), "`gpulease pause ID` stops a job, `gpulease edit ID` changes it."),
    **dict.fromkeys(("sacct", "history"), "`gpulease events` tells who had what, `gpulease ls --all` what ended."),
    **dict.fromkeys(("sreport", "report", "stats"), "`gpulease usage` tells who used how many GPU-hours."),
    **dict.fromkeys(("why", "reason"), "`gpulease explain ID` tells why something waits."),
    **dict.fromkeys(("config", "settings", "quota", "limits"), "`gpulease set` shows and changes parameters."),
    **dict.fromkeys(("daemon", "server", "serve"), "`gpulease broker` is the broker; it also starts by itself."),
    **dict.fromkeys(("docker", "podman", "apptainer", "singularity"), CONTAINER),
    "version": "`gpulease --version` prints it.",
}  # fmt: skip
# a word that somebody asks help for -> the page about it
TOPICS = {
    **dict.fromkeys(("docker", "podman", "apptainer", "singularity"), "containers"),
    **dict.fromkeys(("notebook", "notebooks", "ipython"), "jupyter"),
    **{tool: f"from-{tool}" for tool in ("gpuget", "gpulimit", "gpuselect", "safe-gpu")},
    **dict.fromkeys(("sweep", "sweeps", "array"), "queue"),
    **dict.fromkeys(("中文", "zh", "zh_cn", "zh-cn", "chinese"), "from-gpulimit.zh-CN"),
    "pack": "packing",
}
# a state of another tool's -> ours
STATES = {
    **dict.fromkeys(("pd", "pending", "queued"), "waiting"),
    **dict.fromkeys(("cd", "completed", "done"), "complete"),
    **dict.fromkeys(("ca", "cancelled", "canceled"), "killed"),
    "r": "running",
    "f": "failed",
}


def verb_meant(typed: str, there: Iterable[str]) -> str:
    """What to type instead of a verb that is not there."""
    if typed in HABITS:
        return HABITS[typed]
    close = near(typed, there)
    if close:
        return f"Did you mean `gpulease {close}`?"
    from shutil import which

    if which(typed):  # `run --` was forgotten
        return f"To run it on a GPU, write `gpulease run -- {typed} …`."
    return "See `gpulease --help` for what there is."


def option_meant(typed: str, there: Iterable[str]) -> str | None:
    """The option of a verb that somebody means who types one that it has not."""
    options = set(there)
    typed = typed.partition("=")[0]
    known = [option for option in OPTIONS.get(typed, ()) if option in options]
    return known[0] if known else near(typed, options) if typed.startswith("--") else None


def state_meant(message: str) -> str:
    """What to say to argparse's complaint about a state, if another tool calls one so."""
    _, mark, rest = message.partition("argument --state: invalid choice: '")
    meant = STATES.get(rest.partition("'")[0].lower()) if mark else None
    return f"Did you mean {meant}? " if meant else ""


def words_meant(verb: str, unknown: str, there: Iterable[str]) -> str:
    """What to say to a word that a verb does not take; of options, to a verb that is written as one."""
    from gpulease.cli.main import VERBS

    if verb == "status" and unknown.startswith("--") and unknown[2:] in VERBS:
        return f"Did you mean `gpulease {unknown[2:]}`? "
    if verb == "stop" and unknown.isdecimal():
        return f"`gpulease kill {unknown}` ends a job, `gpulease pause {unknown}` stops it for a while. "
    return f"Did you mean -n {unknown}? " if unknown.isdecimal() and "--gpus" in set(there) else ""


def near(typed: str, there: Iterable[str]) -> str | None:
    from difflib import get_close_matches

    found = get_close_matches(typed, sorted(there), 1, 0.75)
    return found[0] if found else None
