"""PURE: spans of the history as the rows that a client gets, in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpulease.broker.store.history import CountedRow
from gpulease.model.spans import Asked, Count, DeviceName, Row, Span, SpanHolder, SpanUse, in_order
from gpulease.model.store import Document
from gpulease.protocol.messages import CountRow, HistoryRow, HolderRow, UseRow

MIB = 1 << 20
ENDS = ("complete", "failed", "out_of_memory", "killed", "lost", "invalid")


def about(question: Asked, now: float, next: int | None) -> Document:
    since, until, step, _ = question
    return {
        "since": float(since),
        "until": min(float(until), now),
        "step": step,
        "now": now,
        "next": next and float(next),
    }


def history_rows(rows: Iterable[Row], places: Mapping[str, DeviceName]) -> list[HistoryRow]:
    return [_history_row(time, _place(uuid, places), span) for time, uuid, span in _in_order(rows, places)]


def use_rows(rows: Iterable[Row], places: Mapping[str, DeviceName], user: str | None) -> list[UseRow]:
    """Of one user; None: of all."""
    return [
        _use_row(time, _place(uuid, places), holder, use)
        for time, uuid, span in _in_order(rows, places)
        for holder, use in span.uses.items()
        if user in (None, holder.user)
    ]


def count_rows(counts: Iterable[CountedRow], user: str | None) -> list[CountRow]:
    return [_count_row(*one) for one in counts if user in (None, one[1].user)]


def _place(uuid: str, places: Mapping[str, DeviceName]) -> DeviceName:
    return places.get(uuid) or DeviceName(uuid, uuid, "")


def _in_order(rows: Iterable[Row], places: Mapping[str, DeviceName]) -> list[Row]:
    return sorted(rows, key=lambda row: (row[0], in_order(_place(row[1], places).label), row[1]))


def _history_row(time: int, place: DeviceName, span: Span) -> HistoryRow:
    seen = span.seen
    holders = sorted(span.uses.items(), key=lambda one: (one[0].outside, -one[1].held, one[0].user))
    return {
        "time": float(time),
        "device": place.label,
        "uuid": place.uuid,
        "name": place.name,
        "watched": seen.watched / 1000,
        "known": seen.known / 1000,
        "busy": seen.busy / 1000,
        "idle": seen.idle / 1000,
        "utilization": round(100 * seen.busy / seen.known, 1) if seen.known else None,
        "memory": None if seen.memory is None else seen.memory * MIB,
        "memory_most": None if seen.memory_most is None else seen.memory_most * MIB,
        "power": seen.power,
        "held": sum(use.held for holder, use in holders if not holder.outside) / 1000,
        "holders": [_holder_row(*one) for one in _without_groups(holders)],
    }


def _without_groups(holders: Iterable[tuple[SpanHolder, SpanUse]]) -> list[tuple[SpanHolder, SpanUse]]:
    """A user whose groups changed meanwhile is one user."""
    found: dict[SpanHolder, SpanUse] = {}
    for holder, use in holders:
        one = holder._replace(groups=())
        found[one] = found[one].plus(use) if one in found else use
    return list(found.items())


def _holder_row(holder: SpanHolder, use: SpanUse) -> HolderRow:
    return {
        "user": holder.user,
        "label": holder.label,
        "outside": holder.outside,
        "held": use.held / 1000,
        "known": use.known / 1000,
        "busy": use.busy / 1000,
        "idle": use.idle / 1000,
    }


def _use_row(time: int, place: DeviceName, holder: SpanHolder, use: SpanUse) -> UseRow:
    return {"time": float(time), "device": place.label, "groups": list(holder.groups), **_holder_row(holder, use)}


def _count_row(time: int, holder: SpanHolder, devices: tuple[str, ...], count: Count) -> CountRow:
    return {
        "time": float(time),
        "devices": list(devices),
        "user": holder.user,
        "groups": list(holder.groups),
        "label": holder.label,
        "granted": count.granted,
        "waited": count.waited / 1000,
        "jobs": {how.replace("_", "-"): number for how in ENDS if (number := getattr(count, how))},
    }
