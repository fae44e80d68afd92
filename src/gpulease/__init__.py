"""gpulease shares GPUs among people and programs: every use of a GPU is a lease.

The public names load when first used, so that `import gpulease` costs next to nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"
PROTOCOL = 1  # version of the messages between client and broker

_HOMES = {
    "Pool": "gpulease.pool.executor",
    "acquire": "gpulease.leases",
    "worker": "gpulease.pool.context",
    **dict.fromkeys(("select", "status"), "gpulease.api"),
    **dict.fromkeys(("edit", "jobs", "submit", "sweep"), "gpulease.submission"),
    **dict.fromkeys(("events", "exclude", "explain", "include", "release", "renew"), "gpulease.lease_verbs"),
    **dict.fromkeys(("forget_learned", "learned"), "gpulease.lease_verbs"),
    **dict.fromkeys(("history", "usage"), "gpulease.looking_back"),
    **dict.fromkeys(("clean", "kill", "ls", "move", "pause", "resume", "retry"), "gpulease.queueing"),
    **dict.fromkeys(("rm", "set", "show", "start", "wait"), "gpulease.queueing"),
}
_MODULES = ("errors", "placeholders")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease import errors, placeholders
    from gpulease.api import select, status
    from gpulease.lease_verbs import events, exclude, explain, forget_learned, include, learned, release, renew
    from gpulease.leases import acquire
    from gpulease.looking_back import history, usage
    from gpulease.pool.context import worker
    from gpulease.pool.executor import Pool
    from gpulease.queueing import clean, kill, ls, move, pause, resume, retry, rm, show, start, wait
    from gpulease.queueing import set as set
    from gpulease.submission import edit, jobs, submit, sweep

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
