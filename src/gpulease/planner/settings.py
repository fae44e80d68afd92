"""What `gpulease set` may change: each with its name, its kind, its default and its bounds. Kept in the store.

The names of gpulimit are understood too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gpulease.errors import NotFound, UsageError
from gpulease.model.gpuget_address import read_address
from gpulease.model.quantities import SECRETS, exact_size, exact_time, parse_bytes, parse_seconds
from gpulease.model.visible import BY
from gpulease.planner import Policy
from gpulease.planner.limits import read_limits
from gpulease.planner.policy import ARRIVAL, SHORT

CORES = "cores"  # as many as the broker may use


class Settings(NamedTuple):
    """Of the queue; the planner's are in its Policy."""

    polling: float = 1.0
    max_runs: int = 1
    keep_memory: float = 0.2
    grace: float = 10.0
    safe_gpu: str = "auto"
    safe_gpu_patience: float = 10.0
    gpuget: str = ""
    users: str = "respect"
    hide_commands: bool = False
    usage_shown: str = "own"
    on_finish: str = ""
    paused: bool = False
    log_limit: int | None = 1 << 30
    keep_ended: int | None = 100_000
    keep_ended_for: float | None = 90 * 86400.0
    env_exclude: tuple[str, ...] = SECRETS
    keep_env_for: float | None = 86400.0
    visible: str = "uuid"
    order: str = ""
    pack: str = "off"
    pack_after: float = 60.0
    cpu_jobs: int | str = CORES
    on_broken: str = ""
    notify_waited: float = 60.0
    notify_before: float = 600.0
    notify_every: float = 30.0


class Parameter(NamedTuple):
    field: str
    read: Callable[[str], Any]
    meaning: str
    bounds: str
    policy: bool = True
    seed: str | None = None  # what gpulimit calls it
    secret: bool = False  # shown to whoever may change it only
    by_set: bool = True  # else by the config file only

    def text_of(self, value: object) -> str:
        """A value as it may be typed."""
        if isinstance(value, (int, float)) and self.read in TIMES:
            return exact_time(value)
        if isinstance(value, int) and self.read in SIZES:
            return exact_size(value)
        return text_of(value)


def _part(text: str, most: float = 1) -> float:
    number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= number <= most:
        raise ValueError
    return number


def _most_of_it(text: str) -> float:
    """A device that is kept whole would hold nothing."""
    return _part(text, 0.95)


def _whole(text: str) -> int:
    if not 1 <= int(text) <= 1_000_000:
        raise ValueError
    return int(text)


def _number_or_cores(text: str) -> int | str:
    return text if text == CORES else 0 if text == "0" else _whole(text)


def _limit_or_none(text: str) -> int | None:
    return None if text in ("none", "-1", "0", "") else _whole(text)


def _positive(text: str) -> float:
    number = parse_seconds(text)
    if number <= 0:
        raise ValueError
    return number


def _positive_or_none(text: str) -> float | None:
    return None if text == "none" else _positive(text)


def _polling(text: str) -> float:
    number = parse_seconds(text)
    if not 0.1 <= number <= 3600:
        raise ValueError
    return number


def _grace(text: str) -> float:
    number = parse_seconds(text)
    if number > 3600:
        raise ValueError
    return number


def _hook(text: str) -> str:
    return "" if text == "none" else text


def _factor(text: str) -> float:
    if not 0 <= float(text) <= 1e6:
        raise ValueError
    return float(text)


def _flag(text: str) -> bool:
    return {"on": True, "true": True, "1": True, "yes": True, "off": False, "false": False, "0": False, "no": False}[
        text.lower()
    ]


def _mode(text: str) -> str:
    if text not in ("auto", "on", "off"):
        raise ValueError
    return text


def _pack(text: str) -> str:
    return {name: name for name in ("off", "measured")}[text.lower()]


def _order(text: str) -> str:
    return {name: name for name in (SHORT, ARRIVAL)}[text.lower()]


def _own_or_all(text: str) -> str:
    return {name: name for name in ("own", "all")}[text.lower()]


def _visible(text: str) -> str:
    return {name: name for name in BY}[text.lower()]


def _function(text: str) -> str:
    """`module:function`, or a full path in the place of the module; whether it is there is seen when it is asked."""
    if text == "none":
        return ""
    where, _, name = text.rpartition(":")
    if not name.isidentifier() or not (where.startswith("/") or all(map(str.isidentifier, where.split(".")))):
        raise ValueError
    return text


def _respect(text: str) -> str:
    return {name: name for name in ("respect", "ignore")}[text.lower()]


def _gpuget(text: str) -> str:
    return "" if text == "none" else read_address(text).text


def _patterns(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(text.split())


def _size_or_none(text: str) -> int | None:
    return None if text == "none" else parse_bytes(text)


TIMES = {parse_seconds, _positive, _positive_or_none, _polling, _grace}
SIZES = {parse_bytes, _size_or_none}
# fmt: off
PARAMETERS: dict[str, Parameter] = {
    "polling": Parameter("polling", _polling, "time between checks of the GPUs while a job waits or runs", "0.1s to 1h",
                         False, "TIMER_POLLING_TIME"),
    "max-runs": Parameter("max_runs", _whole, "how often a failing job runs in total", "1 to 1000000", False,
                          "MAX_ERR_TIMES"),
    "keep-memory": Parameter("keep_memory", _part, "part of the host's memory; while less is free, no job starts",
                             "0 to 1, or as 20%", False, "SAFETY_KEEP_MEMORY"),
    "keep-gpu-memory": Parameter("memory_reserve", _most_of_it,
                                 "part of a GPU's memory that jobs with --mem leave free",
                                 "0 to 0.95, or as 20%", True, "SAFETY_KEEP_GPU_MEMORY"),
    "max-leases": Parameter("max_leases", _limit_or_none, "most jobs that share one GPU",
                            "1 to 1000000; none, 0 or -1 for no limit", True, "MAX_RUNNING_TASKS"),
    "pack": Parameter("pack", _pack, "whether jobs without --mem share GPUs by the memory they were seen to use",
                      "off or measured", False),
    "pack-most": Parameter("pack_most", _whole, "most leases on a GPU that a packed job is on", "1 to 1000000"),
    "pack-after": Parameter("pack_after", _grace, "a new packed job is alone until its use has not risen for this long",
                            "0 to 1h", False),
    "cpu-jobs": Parameter("cpu_jobs", _number_or_cores, "most jobs without a GPU (`add -n 0`) that run at a time",
                          "0 to 1000000, or cores for their number", False),
    "grace": Parameter("grace", _grace, "time between TERM and KILL", "0 to 1h", False),
    "neighbours.safe-gpu": Parameter("safe_gpu", _mode, "whether to coordinate with safe-gpu's users",
                                     "auto (while somebody uses it), on, or off", False),
    "neighbours.gpuget": Parameter("gpuget", _gpuget, "where gpuget's lists are, if its users share the GPUs",
                                   "redis://HOST:PORT/DB, with ?prefix=GPU if need be; or none", False, secret=True),
    "neighbours.users": Parameter("users", _respect, "how a system broker treats GPUs that users' own brokers hold",
                                  "respect (they are not granted) or ignore", False),
    "safe-gpu-patience": Parameter("safe_gpu_patience", _grace, "time that a user may hold safe-gpu's lock", "0 to 1h",
                                   False),
    "hide-commands": Parameter("hide_commands", _flag, "hide commands, notes, names and paths from other users",
                               "on or off", False),
    "usage-shown": Parameter("usage_shown", _own_or_all, "whose usage `gpulease usage` shows to a user", "own or all",
                             False),
    "on-finish": Parameter("on_finish", _hook, "command or URL that gets each ended job as JSON", "text, or none",
                           False, secret=True),
    "order": Parameter("order", _order, "order among equal users, and of one user's: shortest first, or as they came",
                       "short or arrival"),
    "on-broken": Parameter("on_broken", _hook, "command or URL that gets each GPU that the driver lost, as JSON",
                           "text, or none", False, secret=True),
    "notify-waited": Parameter("notify_waited", parse_seconds, "notify users of a grant after at least this wait",
                               "a time", False),
    "notify-before": Parameter("notify_before", _positive, "notify users this long before a timed lease ends",
                               "a time above 0", False),
    "notify-every": Parameter("notify_every", _grace, "least time between two messages to a user", "0 to 1h", False),
    "patience": Parameter("patience", _factor, "a request is overdue after this many times its expected run time",
                          "0 to 1000000"),
    "patience-floor": Parameter("patience_floor", parse_seconds, "no request is overdue sooner", "a time"),
    "patience-undeclared": Parameter("patience_undeclared", parse_seconds,
                                     "a request with no declared time and no earlier runs is overdue after this",
                                     "a time"),
    "longest-wait": Parameter("longest_wait", _positive, "after this wait GPUs are held for a request, oldest first",
                              "a time above 0"),
    "half-life": Parameter("half_life", _positive, "GPU time used this long ago counts half", "a time above 0"),
    "unexplained-memory": Parameter("unexplained_memory", parse_bytes,
                                    "ignore GPU memory up to this that no visible process uses", "a size"),
    "env-exclude": Parameter("env_exclude", _patterns, "variables that jobs do not get unless --env names them",
                             "names with `*`, divided by spaces, `!` before exceptions; or none", False),
    "keep-env-for": Parameter("keep_env_for", _positive_or_none, "how long the variables of an ended job are kept",
                              "a time above 0, or none", False),
    "log-limit": Parameter("log_limit", _size_or_none, "most bytes of a job's log; beyond it the oldest are cut",
                           "a size, or none", False),
    "keep-ended": Parameter("keep_ended", _limit_or_none, "most ended jobs of each user that are kept",
                            "1 to 1000000; none, 0 or -1 for all", False),
    "keep-ended-for": Parameter("keep_ended_for", _positive_or_none, "how long an ended job is kept",
                                "a time above 0, or none", False),
    "visible": Parameter("visible", _visible, "how CUDA_VISIBLE_DEVICES names GPUs, unless a request says it",
                         "uuid or index", False),
    "policy.order": Parameter("order", _function, "your own function that orders the queue",
                              "module:function or /path/file.py:function, in the config file; or none", False,
                              by_set=False),
    "limits": Parameter("limits", read_limits,
                        "limits of users, groups, priorities: `user:*:gpus=4:jobs=1000 group:students:gpus=8`",
                        "user, group or priority, whose, and how much, as user:*:gpus=4; or none"),
}
# fmt: on
HIDDEN = "(hidden)"
SEED_NAMES = {parameter.seed: name for name, parameter in PARAMETERS.items() if parameter.seed}


def find(name: str, others: Sequence[str] = ()) -> str:
    """The parameter that a name means, gpulimit's spelling included. `others` can be written in the same place."""
    if name in SEED_NAMES:
        return SEED_NAMES[name]
    wanted = name.lower().replace("_", "-")
    if wanted not in PARAMETERS:
        from difflib import get_close_matches

        there = (*PARAMETERS, *others)
        close = get_close_matches(wanted, there, 1)
        meant = f"Did you mean {close[0]}? " if close else ""
        raise NotFound(f"There is no parameter {name[:40]!r}.", f"{meant}There are: {', '.join(there)}.")
    return wanted


def parse(name: str, text: str) -> Any:
    parameter = PARAMETERS[name]
    try:
        return parameter.read(text)
    except UsageError:
        raise
    except (ValueError, KeyError, IndexError):
        raise UsageError(f"{text[:40]!r} is not a value for {name}.", f"Give {parameter.bounds}.") from None


def may_be_set(texts: Mapping[str, str]) -> dict[str, str]:
    """Of what was set, without what only the config file may say."""
    return {name: text for name, text in texts.items() if name not in PARAMETERS or PARAMETERS[name].by_set}


def apply(texts: Mapping[str, str], log: Callable[[str], None]) -> tuple[Settings, Policy]:
    """Settings and policy with the stored texts in them. What this version cannot read stays at its default."""
    settings, policy = Settings(paused="paused" in texts), Policy()
    for name, text in texts.items():
        if name not in PARAMETERS:
            continue
        parameter = PARAMETERS[name]
        try:
            value = parse(name, text)
        except UsageError as trouble:
            log(f"the parameter {name} is left at its default: {trouble.what}")
            continue
        if parameter.policy:
            policy = policy._replace(**{parameter.field: value})
        else:
            settings = settings._replace(**{parameter.field: value})
    return settings, policy


def shown(
    settings: Settings, policy: Policy, texts: Mapping[str, str], config: Mapping[str, str], secrets: bool
) -> list[dict[str, Any]]:
    """Each parameter as it is, and where that comes from: what was set wins over the config, that over the default."""
    rows = []
    for name, parameter in PARAMETERS.items():
        value = getattr(policy if parameter.policy else settings, parameter.field)
        source = "set" if name in texts else "config" if name in config else "default"
        text = texts.get(name) or config.get(name)
        if text is None or value is None or parameter.read in TIMES | SIZES:  # None also of -1 and 0
            text = parameter.text_of(value)
        hidden = parameter.secret and not secrets and source != "default"
        rows.append(
            {
                "name": name,
                "value": HIDDEN if hidden else text,
                "number": value if isinstance(value, (int, float)) and not isinstance(value, bool) else None,
                "default": source == "default",
                "from": source,
                "meaning": parameter.meaning,
                "gpulimit": parameter.seed,
            }
        )
    return rows


def text_of(value: object) -> str:
    """A value as it may be typed."""
    if value is None or value in ("", ()):
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)
