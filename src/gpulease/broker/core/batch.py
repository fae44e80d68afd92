"""Jobs that are added together: one pattern, and what each has of its own, made when it is looked at.

A hundred thousand of them are gone through twice, for the disk and for the line, and never kept as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpulease.model.jobs import Job, changed, stored
from gpulease.model.lifecycle import Effects
from gpulease.model.store import Document

APART = 1e-6  # seconds between the arrival of one and the next


class Batch:
    def __init__(
        self,
        pattern: Job,
        effects: Effects,
        commands: list[tuple[str, ...]],
        log: Callable[[int], str],
        each: list[Document],
    ) -> None:
        """`each`: the fields that a command has of its own; empty when all are alike. `effects`: of each one's step."""
        self.effects, self.state, self.uid, self.after = effects, pattern.state, pattern.uid, pattern.spec.after
        self._pattern, self._commands, self._log, self._each = pattern, commands, log, each
        self.first = pattern.id
        self.last = pattern.id + len(commands) - 1

    @property
    def arrival(self) -> float:
        """Of the last one."""
        return self._added(self.last)

    def jobs(self, begin: int, end: int) -> Iterator[Job]:
        for id in range(begin, end):
            yield changed(self._pattern, **self._own(id))

    def documents(self, begin: int, end: int) -> Iterator[tuple[int, Document]]:
        """As the store keeps them, by id."""
        alike = stored(self._pattern)
        for id in range(begin, end):
            yield id, {**alike, **self._own(id)}

    def _own(self, id: int) -> Document:
        words = self._commands[id - self.first]
        own = {"id": id, "command": words, "log": self._log(id), "added": self._added(id)}
        return {**own, **self._each[id - self.first]} if self._each else own

    def _added(self, id: int) -> float:
        return self._pattern.added + (id - self.first) * APART
