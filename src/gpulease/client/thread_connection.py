"""The connection that each thread keeps, by which the verbs ask: connecting costs more than asking."""

from __future__ import annotations

import os
from _thread import _local  # threading.local, without the module around it

from gpulease.client.connection import again, opened, reconnect
from gpulease.errors import BrokerUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpulease.client.engines import BackendConnection

# What does something else when it is asked twice; the rest may be asked again after a broker that ended.
ONCE = ("kill", "rm", "retry", "move", "start", "pause", "resume", "moved")

_kept = _local()


def take() -> BackendConnection | None:
    """This thread's connection, which is then the caller's; None when it has none.

    Where the broker has ended it is one to the broker that comes after it, which knows what was granted.
    """
    client: BackendConnection | None = getattr(_kept, "client", None)
    _kept.client = None
    if client is None or client.pid != os.getpid():
        return None  # it may be the parent's, from before a fork; it stays open there
    return client if client.idle else again(client)


def put_back(client: BackendConnection) -> None:
    """Only with no answer outstanding: a late one would be taken for the next one's."""
    _kept.client = client


def forget() -> None:
    _kept.client = None


def ask(verb: str, at: str | None = None, start: bool = True, **fields: Any) -> Any:
    """The answer of the broker that this thread is connected to, or of the one with its state `at` a directory."""
    client = take()
    if client is None or at not in (None, client.place.state):
        client = opened(start) if at is None else reconnect(at)
    while True:
        try:
            answer = client.ask(verb, **fields)
            put_back(client)
            return answer
        except ConnectionError:
            if verb in ONCE:
                raise BrokerUnavailable(
                    "The broker ended while it was asked.", "See with `gpulease ls` what came of it, and ask again."
                ) from None
            client = again(client)
        except BrokerUnavailable:
            raise  # it may yet answer, so the connection is not kept
        except Exception:
            put_back(client)
            raise
