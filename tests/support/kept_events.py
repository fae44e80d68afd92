"""The events that a store keeps, read as `gpulease events` reads them."""

from __future__ import annotations

from gpulease.model.store import HistoryEvent, Store


def kept_events(store: Store, since: float = 0.0, most: int = 1000) -> list[HistoryEvent]:
    found = [store.event(number) for number in store.event_numbers(since, most)]
    return [event for event in found if event is not None]
