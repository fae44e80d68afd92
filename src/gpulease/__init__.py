"""gpulease shares GPUs among people and programs: every use of a GPU is a lease.

The public names load when first used, so that `import gpulease` costs next to nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"
PROTOCOL = 1  # version of the messages between client and broker

_HOMES = {
    "Pool": "gpulease.pool.executor",
    "acquire": "gpulease.leases",
    "jobs": "gpulease.submission",
    "select": "gpulease.api",
    "status": "gpulease.api",
    "submit": "gpulease.submission",
    "worker": "gpulease.pool.context",
}
_MODULES = ("errors", "placeholders")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease import errors as errors
    from gpulease import placeholders as placeholders
    from gpulease.api import select as select
    from gpulease.api import status as status
    from gpulease.leases import acquire as acquire
    from gpulease.pool.context import worker as worker
    from gpulease.pool.executor import Pool as Pool
    from gpulease.submission import jobs as jobs
    from gpulease.submission import submit as submit


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
