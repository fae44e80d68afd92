"""gpulease shares GPUs among people and programs: every use of a GPU is a lease.

The public names load when first used, so that `import gpulease` costs next to nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"
PROTOCOL = 1  # version of the messages between client and broker

_HOMES = {
    "Pool": "gpulease.pool.executor",
    "acquire": "gpulease.api.leases",
    "worker": "gpulease.pool.context",
    **dict.fromkeys(("select", "status"), "gpulease.api.status"),
    **dict.fromkeys(("edit", "jobs", "submit", "sweep"), "gpulease.api.add"),
    **dict.fromkeys(("events", "exclude", "explain", "include", "release", "renew"), "gpulease.api.lease_verbs"),
    **dict.fromkeys(("forget_learned", "learned"), "gpulease.api.lease_verbs"),
    **dict.fromkeys(("history", "usage"), "gpulease.api.history"),
    **dict.fromkeys(("clean", "kill", "ls", "move", "pause", "resume", "retry"), "gpulease.api.jobs"),
    **dict.fromkeys(("rm", "set", "show", "start", "wait"), "gpulease.api.jobs"),
}
_MODULES = ("errors", "placeholders")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease import errors, placeholders
    from gpulease.api.add import edit, jobs, submit, sweep
    from gpulease.api.history import history, usage
    from gpulease.api.jobs import clean, kill, ls, move, pause, resume, retry, rm, show, start, wait
    from gpulease.api.jobs import set as set
    from gpulease.api.lease_verbs import events, exclude, explain, forget_learned, include, learned, release, renew
    from gpulease.api.leases import acquire
    from gpulease.api.status import select, status
    from gpulease.pool.context import worker
    from gpulease.pool.executor import Pool

# Without `set`, for `import *` must not hide Python's own.
# fmt: off
__all__ = [
    "Pool", "acquire", "clean", "edit", "errors", "events", "exclude", "explain", "forget_learned", "history",
    "include", "jobs", "kill", "learned", "ls", "move", "pause", "placeholders", "release", "renew", "resume", "retry",
    "rm", "select", "show", "start", "status", "submit", "sweep", "usage", "wait", "worker",
]
# fmt: on


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None and name not in _MODULES:
        raise AttributeError(f"module 'gpulease' has no attribute {name!r}")
    from importlib import import_module

    if home is None:
        return import_module(f"gpulease.{name}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_MODULES])
