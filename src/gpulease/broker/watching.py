"""Clients that wait for jobs to end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from gpulease.job import Job
from gpulease.stores.base import Document

if TYPE_CHECKING:
    from gpulease.broker.connection import Connection
    from gpulease.broker.core import Core


class Watcher(NamedTuple):
    connection: Connection
    ids: set[int]  # of jobs that are not over


class Watching:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._watchers: list[Watcher] = []

    def watch(self, connection: Connection, found: Iterable[Job]) -> None:
        """Tell at once who has ended, and each of the others when it does."""
        watcher = Watcher(connection, set())
        ended = []
        for job in found:
            if job.over:
                ended.append(row(job))
            else:
                watcher.ids.add(job.id)
        self._watchers.append(watcher)
        self._tell(watcher, ended)

    def ended(self, job: Job) -> None:
        for watcher in [one for one in self._watchers if job.id in one.ids]:
            watcher.ids.discard(job.id)
            self._tell(watcher, [row(job)])

    def _tell(self, watcher: Watcher, ended: list[Document]) -> None:
        self._core.edge.send(watcher.connection, {"ok": {"ended": ended, "left": len(watcher.ids)}})
        if not watcher.ids:
            self._watchers.remove(watcher)

    def disconnected(self, connection: Connection) -> None:
        self._watchers = [watcher for watcher in self._watchers if watcher.connection is not connection]


def row(job: Job) -> Document:
    return {"id": job.id, "state": job.state, "exit_code": job.exit_code}
