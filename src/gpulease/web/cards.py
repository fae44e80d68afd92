"""PURE: one GPU as a card: its state, what it does, and who has it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from html import escape
from zlib import crc32

from gpulease.model.job_selection import job_text
from gpulease.model.quantities import format_bytes
from gpulease.render.hosts import STATES, free, models, users
from gpulease.render.status import PLACEHOLDER, short_name
from gpulease.render.times import clock
from gpulease.web.picture import PagePicture, Row, Viewer

VOID = frozenset({"meta", "link", "input", "br"})


class Markup(str):
    """Text that is HTML already; only `tag` and `join` make it."""


Content = str | int | None


def tag(name: str, /, *content: Content, **attributes: str | int | bool | None) -> Markup:
    """`tag("a", "text", href="…")`. `_` in a name stands for `-`, and one at its end is left out, as in `class_`."""
    opened = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    return Markup(opened if name in VOID else f"{opened}{join(*content)}</{name}>")


def join(*content: Content) -> Markup:
    return Markup("".join(_shown(one) for one in content))


def _attribute(name: str, value: str | int | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{_shown(str(value))}"'


def _shown(one: Content) -> str:
    if one is None:
        return ""
    return one if isinstance(one, Markup) else escape(printable(str(one)))


def printable(text: str) -> str:
    """Without control characters, nor those that turn the direction of a line: a name must look like what it is."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else " " for letter in text)


# -------------------------------------------------------------------- buttons

# action -> (what the button says, the states of jobs that it is for, whether it is asked about first)
ACTIONS: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "move": ("To the front", ("waiting",), False),
    "pause": ("Pause", ("running", "waiting"), False),
    "resume": ("Resume", ("paused", "held"), False),
    "kill": ("Kill", ("running", "paused", "waiting", "held"), True),
}


def may_act(job: Row, viewer: Viewer) -> bool:
    return bool(viewer.action_token) and job["user"] == viewer.user


def buttons(job: Row, viewer: Viewer, prefix: str, base: str = "") -> Markup:
    """None for a job of another user's, nor for one that is ending."""
    if not may_act(job, viewer) or job.get("ending"):
        return join()
    return join(
        *(
            _form(job["id"], action, viewer.action_token, f"{prefix}{job['id']}-{action}", base)
            for action, (_, states, _) in ACTIONS.items()
            if job["state"] in states
        )
    )


def _form(id: int, action: str, token: str, name: str, base: str) -> Markup:
    label, _, ask = ACTIONS[action]
    confirm = f"{label} job {id}?" if ask else None
    return tag(
        "form",
        tag("input", type="hidden", name="token", value=token),
        tag("button", label, type="submit", id=name, aria_label=f"{label}: job {id}", class_=action),
        method="post",
        action=f"{base}jobs/{id}/{action}",
        data_confirm=confirm,
    )


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
    """Since its present holder has it: what others did before does not count. What is not known is not idle."""
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


MAX_GPUS = 128  # of one host, each with a square
CELLS = 5  # beside the host's name


def host_row(row: Row, id: str) -> Markup:
    name, answer = tag("th", row["host"], scope="row"), row["answer"]
    if answer is None:
        return tag("tr", name, tag("td", row["trouble"], colspan=CELLS, class_="trouble"), id=id)
    simulated = tag("strong", " SIMULATED", class_="simulated") if answer["simulated"] else None
    total = len(answer["devices"])
    return tag(
        "tr",
        name,
        tag("td", models(answer) or "none", simulated),
        tag("td", f"{free(answer)} of {total}"),
        tag("td", answer["line_length"]),
        tag("td", *_states(answer["devices"])),
        tag("td", users(answer)),
        id=id,
    )


def _states(devices: list[Row]) -> list[Markup]:
    """A picture, and the same in words."""
    words = [_word(one["state"]) for one in devices]
    squares = [
        tag("span", one["label"], class_=f"gpu {word}", title=f"GPU {one['label']}: {word}")
        for one, word in zip(devices[:MAX_GPUS], words, strict=False)
    ]
    counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    return [tag("div", *squares, class_="gpus-of-host", aria_hidden="true"), tag("span", counts, class_="note")]


def _word(state: str) -> str:
    return WORDS.get(state, state) if state in STATES else "unknown"


HOURS = 24
HOUR = 3600.0
COLOURS = 11  # classes holder-0 … of page.css
HATCHED = 0.5  # share of the time that the holder did nothing
SEEN = 0.02  # of an hour, below which a cell stays empty


def colours(users: Iterable[str]) -> dict[str, str]:
    """The same at each visit, and different ones as far as there are enough: a cell has the user's letters too."""
    found: dict[str, int] = {}
    for user in sorted(users):
        wanted = crc32(user.encode()) % COLOURS
        free = [at % COLOURS for at in range(wanted, wanted + COLOURS) if at % COLOURS not in found.values()]
        found[user] = free[0] if free else wanted
    return {user: f"holder-{at}" for user, at in found.items()}


def hours_until(now: float) -> list[float]:
    """The beginnings of the last hours, the current one last."""
    last = now - now % HOUR
    return [last - HOUR * ago for ago in reversed(range(HOURS))]


def day_rows(picture: PagePicture) -> dict[str, Markup]:
    hours = hours_until(picture.time)
    by_place = {(row["uuid"], row["time"]): row for row in picture.hours}
    painted = colours({one["user"] for row in picture.hours for one in row["holders"] if not one["outside"]})
    labels = {row["uuid"]: row["label"] for row in picture.devices}
    rows = {"hours": _heading(hours)}
    for uuid, label in labels.items():
        cells = [
            _cell(by_place.get((uuid, hour)), min(HOUR, max(60.0, picture.time - hour)), painted) for hour in hours
        ]
        rows[f"gpu-{label}"] = tag("tr", tag("th", f"GPU {label}", scope="row"), *cells, id=f"day-gpu-{label}")
    rows["legend"] = _legend(painted)
    return rows


def _heading(hours: list[float]) -> Markup:
    names = [time.strftime("%H", time.localtime(hour)) for hour in hours]
    return tag("tr", tag("td"), *(tag("th", name, scope="col") for name in names), id="day-hours")


def _cell(row: Row | None, span: float, painted: Mapping[str, str]) -> Markup:
    """`span`: how much of the hour has passed."""
    holder = row["holders"][0] if row and row["holders"] else None
    if holder is None or holder["held"] < SEEN * span:
        return tag("td", class_="nobody")
    idle = holder["known"] and holder["idle"] / holder["known"] >= HATCHED
    name = "outside" if holder["outside"] else painted[holder["user"]]
    return tag(
        "td",
        tag("span", holder["user"][:2], aria_hidden="true"),
        tag("span", _sentence(holder, span), class_="unseen"),
        class_=" ".join([name, *(["idle"] if idle else []), f"part-{_quarters(holder['held'] / span)}"]),
        title=_sentence(holder, span),
    )


def _quarters(share: float) -> int:
    return min(4, max(1, round(4 * share)))


def _sentence(holder: Row, span: float) -> str:
    busy = f", busy {holder['busy'] / holder['known']:.0%}" if holder["known"] else ""
    how = "used outside by" if holder["outside"] else "held by"
    return f"{how} {holder['user']} {min(1.0, holder['held'] / span):.0%}{busy}"


def _legend(painted: Mapping[str, str]) -> Markup:
    marks = [(name, user[:2], user) for user, name in painted.items()]
    marks += [("idle", "", "held and idle"), ("outside", "", "outside use")]
    shown = [
        tag("span", tag("span", letters, class_=f"mark {name}", aria_hidden="true"), f" {what}", class_="marked")
        for name, letters, what in marks
    ]
    return tag("tr", tag("td", *shown, colspan=HOURS + 1, class_="legend"), id="day-legend")


# -------------------------------------------------------------------- usage


def usage_row(row: Row, rows: tuple[Row, ...], id: str) -> Markup:
    most = max((one["held"] for one in rows), default=0.0) or 1.0
    idle = "" if row["idle_share"] is None else f"{row['idle_share']:.0%}"
    bars = tag("td", meter(row["held"] / most, "held"), meter(row["busy"] / most, "busy"), class_="bars")
    cells = (_hours(row["held"]), _hours(row["busy"]), idle)
    return tag(
        "tr", tag("th", row["name"], scope="row"), bars, *(tag("td", cell, class_="number") for cell in cells), id=id
    )


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR:.1f} h"
