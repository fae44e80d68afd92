"""PURE: one GPU as a card: its state, what it does, and who has it."""

from __future__ import annotations

from gpulease.model.job_selection import job_text
from gpulease.model.quantities import format_bytes
from gpulease.render.status import PLACEHOLDER, short_name
from gpulease.render.times import clock
from gpulease.web.markup import Markup, join, tag
from gpulease.web.picture import PagePicture, Row

MAX_PROCESSES = 4
IDLE_AFTER = 300.0  # seconds of which something is known
IDLE_SHARE = 0.95
WORDS = {"leased": "held", "shared": "held"}


def state_word(device: Row, picture: PagePicture) -> str:
    """As `status` has it, but for a device that is held and has done nothing for some minutes."""
    if picture.trouble is not None and device["state"] != "lost":
        return "unknown"  # what was free when the broker was last heard may be held by now
    word = WORDS.get(device["state"], str(device["state"]))
    return "idle" if word == "held" and _is_idle(device, picture) else word


def _is_idle(device: Row, picture: PagePicture) -> bool:
    """Since whoever came last has it: what others did before is not theirs. What is not known is not idle."""
    since = max((lease["since"] for lease in _leases(device, picture)), default=float("inf"))
    rows = [row for row in picture.minutes if row["uuid"] == device["uuid"] and row["time"] >= since]
    held = [one for row in rows for one in row["holders"] if not one["outside"]]
    known: float = sum(one["known"] for one in held)
    idle: float = sum(one["idle"] for one in held)
    return known >= IDLE_AFTER and idle >= IDLE_SHARE * known


def _leases(device: Row, picture: PagePicture) -> list[Row]:
    return [lease for lease in picture.leases if lease["id"] in device["leases"]]


def card(device: Row, picture: PagePicture, id: str) -> Markup:
    word = state_word(device, picture)
    return tag(
        "li",
        tag("h3", f"GPU {device['label']} ", tag("span", word, class_="badge")),
        tag("p", short_name(device["name"]), class_="model"),
        _bars(device),
        tag("p", _sensors(device), class_="sensors"),
        *(tag("p", _holder(lease, picture.time), class_="holder") for lease in _leases(device, picture)),
        *_details(device),
        id=id,
        class_=f"card {word}",
    )


def _bars(device: Row) -> Markup:
    used, total = device["memory_used"], device["memory_total"]
    share = used / total if used is not None and total else None
    busy = None if device["utilization"] is None else device["utilization"] / 100
    memory = f"{format_bytes(used)} of {format_bytes(total)}"
    return join(_bar("Busy", busy, _percent(busy)), _bar("Memory", share, memory))


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.0%}"


def _bar(label: str, share: float | None, text: str) -> Markup:
    words = join(tag("span", label), tag("span", text))
    return tag("div", tag("p", words), meter(share), class_="bar")


def meter(share: float | None, class_: str = "") -> Markup:
    """A picture only: what it shows stands beside it as text."""
    width = f"{min(1.0, max(0.0, share or 0.0)):.1%}"
    filled = tag("rect", width=width, height="100%", class_="filled")
    return tag(
        "svg",
        tag("rect", width="100%", height="100%", class_="empty"),
        filled,
        class_=f"meter {class_}".strip(),
        aria_hidden="true",
    )


def _sensors(device: Row) -> str:
    heat = "" if device["temperature"] is None else f"{device['temperature']} °C"
    power = "" if device["power"] is None else f"{device['power'] / 1000:.0f} W"
    slowed = [reason for reason in device.get("throttling") or () if reason.startswith(("sw_", "hw_"))]
    return ", ".join(part for part in (heat, power, f"slowed down: {' '.join(slowed)}" if slowed else "") if part)


def _holder(lease: Row, now: float) -> Markup:
    id = lease["id"]
    name = tag("a", id, href=f"jobs/{job_text(id)}") if lease["kind"] == "job" else join(f"{id} {lease['kind']}")
    share = f", {format_bytes(lease['memory'])}" if lease["memory"] else ""
    end = f", until {clock(lease['until'], now)}" if lease["until"] else ""
    ending = f", ending: {lease['ending']}" if lease.get("ending") else ""
    what = "".join(f": {text}" for text in (lease.get("job"), lease["note"]) if text)
    return join(
        tag("strong", lease["user"]), " ", name, f"{share}, since {clock(lease['since'], now)}{end}{ending}{what}"
    )


def _details(device: Row) -> list[Markup]:
    if device["lost"]:
        return [tag("p", device["lost"], class_="detail")]
    processes = device["processes"] or []
    strangers = [one for one in processes if one["lease"] is None and one["command"] != PLACEHOLDER]
    shown = [
        tag(
            "p",
            f"{'Without a lease: ' if device['leases'] and one['pid'] in device['outside'] else ''}"
            f"{one['user'] or '?'} {one['pid']}, {format_bytes(one['memory'])}: {one['command'] or '?'}",
            class_="detail",
        )
        for one in strangers[:MAX_PROCESSES]
    ]
    more = len(strangers) - MAX_PROCESSES
    note = device["note"]
    return [
        *shown,
        *([tag("p", f"and {more} more", class_="detail")] if more > 0 else []),
        *([tag("p", note, class_="detail")] if note else []),
    ]
