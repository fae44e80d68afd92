"""Receive changes from the broker as they happen, through its restarts.

with Subscription("leases") as told:
    told.receive(None)            what changed: {"leases": {"L3": None}}
    told.rows["leases"]           all of them, as they are now
"""

from __future__ import annotations

from gpulease.client.connection import again, opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpulease.client.engines import BackendConnection
    from gpulease.protocol.wire import Message


class Subscription:
    def __init__(
        self, *topics: str, select: dict[str, Any] | None = None, client: BackendConnection | None = None
    ) -> None:
        """To `devices`, `leases`, `line`, `order` or `jobs`; of jobs those that `select` chooses, or all.

        With a `client` of the caller's, that the broker ended is the caller's to deal with: a ConnectionError.
        """
        self._again = client is None
        self._asked: dict[str, Any] = {"topics": list(topics), **({} if select is None else {"select": select})}
        self._client = client or opened()
        self.rows: dict[str, dict[str, Any]] = {}
        self.open = 0  # jobs that are not over
        self._client.send("subscribe", **self._asked)

    def receive(self, timeout: float | None) -> Message | None:
        """What changed, by topic and key, with None for what is gone; None when nothing did in time."""
        try:
            reply = self._client.receive(timeout)
        except ConnectionError:
            if not self._again:
                raise
            self._client = again(self._client)
            self._client.send("subscribe", **self._asked)
            return {}
        if reply is None:
            return None
        changed: dict[str, Any] = dict(reply.get("snapshot") or reply.get("changed") or {})
        if "snapshot" in reply:
            self.rows = {}
        self.open = changed.pop("open", self.open)
        for topic, rows in changed.items():
            kept = {**self.rows.get(topic, {}), **rows}
            self.rows[topic] = {key: row for key, row in kept.items() if row is not None}
        return changed

    def fileno(self) -> int:
        """Of the connection to a broker, which can be waited for; an engine has none."""
        connection: Any = self._client
        return int(connection.fileno())

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
