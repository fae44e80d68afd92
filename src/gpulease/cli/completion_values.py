"""What a word of a command line may become: ids, labels, users, models, devices, as the broker knows them.

A broker that does not run is not started for it, and one that is slow is not waited for. Nothing is said then.
"""

from __future__ import annotations

import os

from gpulease.errors import GpuleaseError
from gpulease.model.fields import JOB, REQUEST
from gpulease.model.job_selection import ENDED, STATES, job_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST = 200  # jobs that are asked for
PATIENCE = 2.0  # seconds, after which nobody wants to know any more
OPEN = "waiting,held,running,paused"
OVER = ",".join(ENDED)
# The states of the jobs that a verb is for; the others are for all.
JOBS = {
    "kill": OPEN, "wait": OPEN, "pause": "running", "resume": "paused,held", "move": "waiting", "edit": "waiting,held",
    "start": "waiting,held,failed,killed,lost", "retry": OVER, "clean": OVER, "add": OPEN,
}  # fmt: skip


def values(verb: str, name: str) -> list[str]:
    """For an option, by its long name, or for a positional argument, by the name that its value has."""
    source = OF_OPTIONS.get(name) or OF_POSITIONAL.get((verb, name)) or OF_POSITIONAL.get(("", name))
    if source is None:
        return []
    try:
        return list(dict.fromkeys(source(verb)))  # in order, each once
    except (GpuleaseError, OSError, KeyError):
        return []


def ends_in_time() -> None:
    """A broker that hangs ends this process, silently, and the shell offers what it has by itself."""
    import signal

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)


def _ask(verb: str, **fields: Any) -> Any:
    from gpulease.client.connection import opened

    return opened(start=False).ask(verb, **fields)


def _rows(verb: str) -> list[dict[str, Any]]:
    """The newest first. A verb that changes jobs is for one's own, unless one is root."""
    select: dict[str, Any] | None = {"state": JOBS[verb]} if verb in JOBS else None
    if select and os.getuid() != 0:
        select["mine"] = True
    reply = _ask("ls", all=True, most=MOST, select=select)["jobs"]
    return sorted(reply, key=lambda job: -job["id"])


def _job_ids(verb: str) -> list[str]:
    more = ["main", "broker"] if verb == "log" else list(ENDED) if verb == "clean" else []
    words = ["last"] if verb in ("move", "explain") else ["all", "last"]
    try:
        return [*(str(job["id"]) for job in _rows(verb)), *words, *more]
    except (GpuleaseError, OSError):
        return [*words, *more]


def _labels(verb: str) -> list[str]:
    return [job["label"] for job in _ask("ls", all=True, most=MOST)["jobs"] if job["label"]]


def _users(verb: str) -> list[str]:
    reply = _ask("status")
    rows = [*reply["leases"], *reply["line"], *_ask("ls", all=True, most=MOST)["jobs"]]
    return sorted({row["user"] for row in rows})


def _leases(verb: str) -> list[str]:
    from gpulease.system.identity import user_name

    me = user_name(os.getuid())
    held = [lease for lease in _ask("status")["leases"] if lease["kind"] != "job" and lease["user"] == me]
    return [lease["id"] for lease in held]


def _waiting(verb: str) -> list[str]:
    return [*(job_text(row["id"]) for row in _ask("status")["line"]), "last"]


def _devices(verb: str) -> list[str]:
    return [device["label"] for device in _ask("status")["devices"]]


def _models(verb: str) -> list[str]:
    """The word of each name that is its number: `A100-SXM4`, `4090`."""
    words = [word for device in _ask("status")["devices"] for word in device["name"].split()]
    return [word for word in words if (any(map(str.isdigit, word)) and not word[:-2].isdigit()) or word.isdigit()]


def _pools(verb: str) -> list[str]:
    from gpulease.pool.places import names

    return names()


def _topics(verb: str) -> list[str]:
    from gpulease.cli.commands import help
    from gpulease.cli.main import VERBS

    known = help.topics()
    short = (topic.rpartition("/")[2] for topic in known if not topic.startswith("decisions"))
    return list(dict.fromkeys([*VERBS, *short, *known]))


def _hosts(verb: str) -> list[str]:
    from gpulease.hosts.hosts import names

    return [*names(), *(["any"] if verb in ("", "add", "run", "shell") else [])]


def _engines(verb: str) -> list[str]:
    from gpulease.client.engines import ENGINES
    from gpulease.system.places import LOCAL

    return [LOCAL, *ENGINES]


def _parameters(verb: str) -> list[str]:
    from gpulease.planner.settings import PARAMETERS

    return list(PARAMETERS)


def _notices(verb: str) -> list[str]:
    from gpulease.model.notices import ALL, EVENTS, NONE

    return [*EVENTS, ALL, NONE]


_SOURCES = {"labels": _labels, "jobs": _job_ids, "models": _models, "devices": _devices, "notices": _notices}
OF_OPTIONS: dict[str, Callable[[str], list[str]]] = {
    **{
        flag: _SOURCES[row.kind.values]
        for row in (*REQUEST, *JOB)
        for flag in (*row.flags, f"--{row.changed_as.replace('_', '-')}")
        if row.kind.values
    },
    "--user": _users,
    "--gpu": _devices,
    "--on": _notices,
    "--host": _hosts,
    "--hosts": _hosts,
    "--engine": _engines,
    "--state": lambda verb: list(STATES),
}
# By verb and name; for any verb, by name.
OF_POSITIONAL: dict[tuple[str, str], Callable[[str], list[str]]] = {
    ("", "ids"): _job_ids,
    ("move", "id"): _job_ids,
    ("explain", "id"): _waiting,
    ("release", "what"): lambda verb: [*_leases(verb), *_devices(verb)],
    ("renew", "what"): _leases,
    ("exclude", "what"): _devices,
    ("include", "what"): _devices,
    ("set", "name"): _parameters,
    ("set", "value"): lambda verb: ["default"],
    ("notify", "address"): lambda verb: ["tty", "mailto:", "https://"],
    ("pool", "name"): _pools,
    ("pool", "names"): _pools,
    ("help", "topic"): _topics,
}
