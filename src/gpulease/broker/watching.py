"""Clients that wait for jobs to end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from gpulease.job import Job
from gpulease.stores.base import Document

if TYPE_CHECKING:
    from gpulease.broker.connection import Connection
    from gpulease.broker.core import Core


TELL = 0.05  # seconds between words to one client, unless all is over: each costs as much as starting a job


class Watcher(NamedTuple):
    connection: Connection
    ids: set[int]  # of jobs that are not over
    ended: list[Document]  # not told yet


class Watching:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._watchers: list[Watcher] = []

    def watch(self, connection: Connection, found: Iterable[Job]) -> None:
        """Tell at once who has ended, and soon after it happens who of the others does."""
        watcher = Watcher(connection, set(), [])
        for job in found:
            if job.over:
                watcher.ended.append(row(job))
            else:
                watcher.ids.add(job.id)
        self._watchers.append(watcher)
        self._tell(watcher)

    def ended(self, job: Job) -> None:
        for watcher in [one for one in self._watchers if job.id in one.ids]:
            watcher.ids.discard(job.id)
            watcher.ended.append(row(job))
            if not watcher.ids:
                self._tell(watcher)
            elif len(watcher.ended) == 1:
                self._core.alarm(self._core.now() + TELL, "tell")

    def tell(self) -> None:
        for watcher in [one for one in self._watchers if one.ended]:
            self._tell(watcher)

    def _tell(self, watcher: Watcher) -> None:
        self._core.edge.send(watcher.connection, {"ok": {"ended": watcher.ended.copy(), "left": len(watcher.ids)}})
        watcher.ended.clear()
        if not watcher.ids:
            self._watchers.remove(watcher)

    def disconnected(self, connection: Connection) -> None:
        self._watchers = [watcher for watcher in self._watchers if watcher.connection is not connection]


def row(job: Job) -> Document:
    return {"id": job.id, "state": job.state, "exit_code": job.exit_code}
