"""Clients that ask for a lease: into the line, out of it, and what they are told meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulease.broker.records import Asker, asker_document
from gpulease.errors import GpuleaseError, NotEnoughDevices, NotGranted, StateError
from gpulease.messages import error
from gpulease.planner.reasons import IMPOSSIBLE, UNAVAILABLE
from gpulease.stores.base import Change

if TYPE_CHECKING:
    from gpulease.broker.core import Core

FRESH = 1.0  # seconds that a sample serves to refuse somebody, or to show the status


class Asking:
    def __init__(self, core: Core) -> None:
        self._core = core
        self.fresh: list[str] = []  # in the line, and neither on disk nor told to anybody

    def enter(self, asker: Asker, fresh: bool = True) -> None:
        """Into the line. A fresh one is on disk only when it really has to wait."""
        id = asker.waiting.id
        self._core.askers[id] = asker
        self._core.line.add(asker.waiting)
        self._core.holding.own(asker.owner, id)
        if fresh:
            self.fresh.append(id)
        self._core.look_again()
        if asker.deadline is not None and (asker.deadline > self._core.now() or not fresh):
            self._core.alarm(asker.deadline, "deadline", id)

    def leave(self, id: str) -> Asker:
        """Out of the line, in memory only."""
        asker = self._core.askers.pop(id)
        self._core.line.remove(id)
        self._core.waiting_at.pop(id, None)
        if id in self.fresh:
            self.fresh.remove(id)
        self._core.granting.stale()
        return asker

    def drop(self, id: str) -> None:
        """Out of the line for good."""
        stored = id not in self.fresh
        if stored:
            self._core.commit([Change("line", id, None)], [])
        asker = self.leave(id)
        self._core.holding.disown(asker.owner, id)

    def refuse(self, id: str, trouble: GpuleaseError) -> None:
        connection = self._core.waiting_at.get(id)
        self.drop(id)
        if connection is not None:
            self._core.edge.send(connection, error(trouble))

    def settle(self) -> None:
        """Whoever was not granted at once is refused, or put on disk and told why it waits."""
        if not self.fresh or self._core.granting.checking is not None:
            return None
        old = self._core.sample is None or self._core.now() - self._core.sample_time > FRESH
        if old and self._core.trouble is None and self._core.edge.ask("all"):
            return None
        if self._core.sample is None:
            return self.refuse_all(self._core.trouble or NotGranted("No GPU has been seen yet."))
        decided = self._core.granting.current_plan()
        if decided.grants and not self._core.granting.is_blocked():
            return None
        staying = [id for id in list(self.fresh) if not self._refused(id)]
        self._store_fresh(staying)

    def refuse_all(self, trouble: GpuleaseError) -> None:
        for id in list(self.fresh):
            self.refuse(id, trouble)

    def _refused(self, id: str) -> bool:
        asker = self._core.askers[id]
        code, sentence = self.reason(id)
        if code == IMPOSSIBLE:
            self.refuse(id, NotEnoughDevices(sentence, "Ask for less; `gpulease status` shows what is here."))
        elif asker.deadline is not None and asker.deadline <= self._core.now():
            self.refuse(id, NotGranted(f"Not granted: {_lower(sentence)}", self._next_step(code)))
        else:
            return False
        return True

    def _store_fresh(self, ids: list[str]) -> None:
        if not ids:
            return None
        try:
            self._core.commit([Change("line", id, asker_document(self._core.askers[id])) for id in ids], [])
        except StateError as trouble:
            return self.refuse_all(trouble)
        for id in ids:
            self.fresh.remove(id)
            connection = self._core.waiting_at.get(id)
            if connection is not None:
                self._core.edge.send(connection, {"waiting": {"id": id, "place": self.place(id), "why": self.why(id)}})
        return None

    def reason(self, id: str) -> tuple[str, str]:
        """A code and the sentence why `id` waits: the planner's own, or what keeps the planner from being heard."""
        if self._core.trouble is not None:
            return self._core.trouble.code, self._core.trouble.what
        try:
            reason = self._core.granting.current_plan().reason(id)
        except KeyError:
            return "checking", self._core.granting.blocked or "It fits, and a last look at its devices is being taken."
        return reason.code, reason.sentence

    def _next_step(self, code: str) -> str | None:
        """Waiting longer helps where the devices are in use, not where they cannot be had."""
        if self._core.trouble is not None:
            return self._core.trouble.next_step
        return "See `gpulease status`." if code == UNAVAILABLE else None

    def why(self, id: str) -> str:
        return self.reason(id)[1]

    def place(self, id: str) -> int:
        return 1 + self._core.line.ahead(id)

    def deadline(self, id: str) -> None:
        asker = self._core.askers.get(id)
        if asker is not None and asker.deadline is not None and asker.deadline <= self._core.now():
            code, sentence = self.reason(id)
            self.refuse(id, NotGranted(f"Not granted in time: {_lower(sentence)}", self._next_step(code)))


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
