"""What answers requests: the broker of this machine, or an engine that takes its place, such as Slurm.

Every verb, of the command line and of Python, asks through a `BackendConnection` in the messages of `messages`; so an
engine that answers those messages has every verb, its `--json` and its exit codes. `places.engine` says which answers.
A broker on another host is no engine: `--host` runs that host's own gpulease (`cli.remote`).
"""

from __future__ import annotations

from gpulease.errors import GpuleaseError, NotOnEngine, UsageError
from gpulease.system.places import LOCAL

TYPE_CHECKING = False  # typing is not loaded for a name
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Protocol

    from gpulease.protocol.wire import Message
    from gpulease.system.places import Place

    class BackendConnection(Protocol):
        """As `client.Client`, which is the one to a broker: not shared between threads, nor across a fork."""

        pid: int  # of the process that opened it
        place: Place  # its `state` names what answers: Place(name, "", places.ENGINE + name)
        broker_uid: int  # who will run jobs and so reads their environment: an engine gives os.geteuid()
        env_exclude: str | None  # patterns of variables that jobs are not given; "none"

        def ask(self, verb: str, **fields: Any) -> Any:
            """The `ok` of the reply (messages.REPLIES), or a GpuleaseError."""

        def send(self, verb: str, **fields: Any) -> None:
            """For `acquire` and `subscribe`, which are answered by several messages."""

        def receive(self, timeout: float | None) -> Message | None:
            """The next of them: `waiting`, `granted`, `snapshot`, `changed`; None when none came in time."""

        @property
        def idle(self) -> bool: ...

        def silent(self) -> GpuleaseError:
            """The error for one that gives no answer."""

        def close(self) -> None: ...

    class EngineModule(Protocol):
        """What the module of an engine has."""

        # verb of the command line -> what it cannot do, and what to do instead: two whole sentences
        CANNOT: Mapping[str, tuple[str, str]]
        # verb of the command line -> `module:function` that does it with the same arguments, instead of the usual one
        VERBS: Mapping[str, str]

        def connect(self, start: bool) -> BackendConnection: ...


# name -> the module with its functions, as `EngineModule` has them
ENGINES = {"slurm": "gpulease.slurm.engine"}


def engine(name: str) -> EngineModule:
    if name not in ENGINES:
        raise UsageError(f"There is no engine {name[:40]!r}.", f"Give one of {', '.join((LOCAL, *ENGINES))}.")
    found: EngineModule = _module(ENGINES[name])
    return found


def connect(name: str, start: bool = True) -> BackendConnection:
    return engine(name).connect(start)


def verb_on(name: str, verb: str) -> Any:
    """The function that does this verb on an engine; None for the usual one. Refuses what the engine cannot do."""
    chosen = engine(name)
    if verb in chosen.CANNOT:
        raise NotOnEngine(*chosen.CANNOT[verb])
    module, _, function = chosen.VERBS.get(verb, "").partition(":")
    return getattr(_module(module), function) if module else None


def _module(path: str) -> Any:
    """importlib would load more than that."""
    return __import__(path, fromlist=["_"])
