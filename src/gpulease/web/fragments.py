"""PURE: the parts of the page, each an element with an id, by section and key.

The same parts make the page that is sent first and the changes that follow, so a browser without JavaScript sees the
same. Each is rendered anew; only those whose text changed are sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from urllib.parse import quote
from zlib import crc32

from gpulease.model.job_selection import job_number, job_text
from gpulease.render.events import table_rows
from gpulease.render.hosts import status_lines
from gpulease.render.jobs import end_text, state_text
from gpulease.render.status import lines, totals
from gpulease.render.terminal import Terminal
from gpulease.render.times import clock, start_text
from gpulease.web.cards import Markup, buttons, card, day_rows, host_row, join, state_word, tag, usage_row
from gpulease.web.picture import PagePicture, Row, Viewer

MAX_WAITING = 100
MARK = "\0"  # where the word for a simulated machine belongs
Section = dict[str, Markup]  # in the order in which they stand
Sections = dict[str, Section]


def sections(picture: PagePicture, viewer: Viewer) -> Sections:
    return {
        "summary": {"now": _summary(picture), "trouble": _trouble(picture)},
        "gpus": {_key(row["uuid"]): card(row, picture, f"gpus-{_key(row['uuid'])}") for row in picture.devices},
        "hosts": {_key(row["host"]): host_row(row, f"hosts-{_key(row['host'])}") for row in picture.hosts},
        "line": _line(picture),
        "jobs": {str(job["id"]): _job(job, picture, viewer) for job in picture.jobs},
        "day": day_rows(picture),
        "usage": {
            _key(row["name"]): usage_row(row, picture.usage, f"usage-{_key(row['name'])}") for row in picture.usage
        },
        "events": _events(picture),
    }


def _key(name: str) -> str:
    return quote(name, safe=":")


# ---------------------------------------------------------------------- at the top


def _summary(picture: PagePicture) -> Markup:
    status = picture.status
    words = [state_word(row, picture) for row in picture.devices]
    simulated = tag("strong", "SIMULATED ", class_="simulated") if status.get("simulated") else ""
    others = [f"{words.count(word)} {word}" for word in sorted({*words} - {"free", "unknown"})]
    waiting = "".join(f"; {text}" for text in (", ".join(others), f"{picture.line_length} waiting") if text)
    waiting += "; the queue is paused" if picture.paused else ""
    before, mark, after = totals(picture.document()["devices"], MARK).partition(MARK)  # as `status` and `top` count
    return tag("p", before, simulated if mark else "", after, waiting, id="summary-now")


def _trouble(picture: PagePicture) -> Markup:
    broker = picture.status.get("broker") or {}
    troubles = [
        _stale(picture),
        picture.status.get("trouble"),
        broker.get("state_trouble"),
        broker.get("config_trouble"),
    ]
    found = [tag("p", text) for text in troubles if text]
    return tag(
        "div",
        *found,
        id="summary-trouble",
        class_=f"trouble{' old' if picture.trouble else ''}",
        role="alert",
        hidden=not found,
    )


def _stale(picture: PagePicture) -> str | None:
    """That the broker cannot be asked, and of when the rest of the page is."""
    if picture.trouble is None or not picture.heard:
        return picture.trouble
    return f"{picture.trouble} Everything below is as of {clock(picture.heard, picture.time, seconds=True)}."


# ---------------------------------------------------------------------- the line


def _line(picture: PagePicture) -> Section:
    rows = {
        _key(row["id"]): _waiting(place, row, picture.time) for place, row in enumerate(picture.line[:MAX_WAITING], 1)
    }
    more = picture.line_length - len(rows)
    if more > 0:
        rows["more"] = tag("tr", tag("td", f"and {more} more", colspan=7), id="line-more")
    return rows


def _waiting(place: int, row: Row, now: float) -> Markup:
    why = tag("span", row.get("why_short") or row["why"], title=row["why"])
    note = tag("span", f" {row['note']}", class_="note") if row["note"] else None
    cells = (str(place), _link(row["id"]), row["user"], wants(row), clock(row["since"], now), expected(row, now))
    return tag("tr", *(tag("td", cell) for cell in cells), tag("td", why, note), id=f"line-{_key(row['id'])}")


def wants(row: Row) -> str:
    if row["memory"]:
        from gpulease.model.quantities import format_bytes

        return format_bytes(row["memory"])
    return f"{row['gpus']} GPU{'' if row['gpus'] == 1 else 's'}" if row["gpus"] else "no GPU"


def expected(row: Row, now: float) -> str:
    """When it should start, of a request in the line or of a job."""
    return start_text(row, now)


def _link(id: str) -> Markup:
    """A job has a page of its own; another lease has not."""
    return tag("a", id, href=f"jobs/{job_text(id)}") if job_number(id) else join(id)


# ---------------------------------------------------------------------- jobs and events


def _job(job: Row, picture: PagePicture, viewer: Viewer) -> Markup:
    state = state_text(job)
    how = end_text(job["exit_code"], job["signal"]) if job["state"] == "failed" else job.get("why_short") or ""
    shown = tag("a", str(job["id"]), href=f"jobs/{job['id']}")
    word = tag("span", state, class_=f"state {state}")
    moment = job["ended"] or job["started"] or job["added"]
    cells = (shown, join(word, f" {how}" if how else ""), job["user"], ", ".join(job["devices"]), _title(job))
    time = tag("td", clock(moment, picture.time))
    acts = tag("td", buttons(job, viewer, "jobs-"), class_="actions")
    return tag("tr", *(tag("td", cell) for cell in cells), time, acts, id=f"jobs-{job['id']}")


def _title(job: Row) -> str:
    return job["name"] or " ".join(job["command"])[:200]


def _events(picture: PagePicture) -> Section:
    """The newest first. How long something lasts that goes on is not shown: it would change each second."""
    shown = table_rows(picture.events, True, picture.time)  # type: ignore[arg-type]  # rows of the broker's, as they came
    keys = [f"{crc32(repr(cells).encode()):08x}" for cells in shown]
    return {key: _event(f"events-{key}", cells) for key, cells in reversed(list(zip(keys, shown, strict=True)))}


def _event(id: str, cells: Iterable[str]) -> Markup:
    return tag("tr", *(tag("td", cell) for cell in cells), id=id)


REFRESH = 10  # seconds, without JavaScript
DAYS = 7

TABLES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "hosts": ("Hosts", ("Host", "GPUs", "Free", "Waiting", "State", "Used by"), ""),
    "line": ("Waiting", ("#", "Request", "User", "Wants", "Since", "Start", "Why"), "Nobody waits."),
    "jobs": ("Jobs", ("Job", "State", "User", "GPU", "Command", "Time", "Actions"), "No jobs."),
    "usage": (f"Used in {DAYS} days", ("User", "Held above used", "Held", "Used", "Idle"), "Nothing is known yet."),
    "events": ("Events", ("Start", "End", "Long", "User", "GPU", "What"), "No events yet."),
}


def document(title: str, body: Markup, stream: str, base: str = "", refresh: str = "./") -> str:
    """`base` leads from this page to the folder of the first."""
    refreshing = tag("noscript", tag("meta", http_equiv="refresh", content=f"{REFRESH}; url={refresh}"))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("link", rel="stylesheet", href=f"{base}static/page.css"),
        tag("link", rel="icon", type="image/svg+xml", href=f"{base}static/icon.svg"),
        tag("script", src=f"{base}static/page.js", defer=True),
        refreshing,
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", body, data_stream=stream), lang="en")


def first_page(picture: PagePicture, parts: Sections) -> str:
    host = picture.status.get("host", "gpulease")
    body = join(
        tag("a", "Skip to the GPUs", href="#gpus", class_="skip"),
        tag(
            "header",
            tag("h1", host),
            tag("div", *parts["summary"].values(), id="summary", role="status"),
            _connection(),
        ),
        tag(
            "main",
            _section("gpus", "GPUs", tag("ul", *parts["gpus"].values(), id="gpus", class_="cards")),
            _table("hosts", parts) if parts["hosts"] else None,
            _table("line", parts),
            _section(
                "day",
                "Last 24 hours",
                _scrolling("day", "Last 24 hours", tag("table", tag("tbody", *parts["day"].values(), id="day"))),
            ),
            _table("usage", parts),
            _table("jobs", parts),
            _table("events", parts),
        ),
    )
    return document(f"GPUs of {host}", body, "stream")


def _connection() -> Markup:
    return tag("p", id="connection", class_="trouble", role="alert", hidden=True)


def _section(name: str, title: str, content: Markup, *more: Markup) -> Markup:
    return tag(
        "section",
        tag("h2", title, id=f"heading-{name}"),
        content,
        *more,
        aria_labelledby=f"heading-{name}",
        class_=f"section-{name}",
    )


def _table(name: str, parts: Sections) -> Markup:
    title, columns, empty = TABLES[name]
    head = tag("thead", tag("tr", *(tag("th", column, scope="col") for column in columns)))
    table = tag("table", head, tag("tbody", *parts[name].values(), id=name))
    return _section(name, title, _scrolling(name, title, table), tag("p", empty, class_="when-empty"))


def _scrolling(name: str, title: str, table: Markup) -> Markup:
    """A wide table scrolls by itself on a phone, and by the keyboard."""
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=f"{title}, table")


def job_page(id: int, host: str, details: Markup, log: str, about_log: str) -> str:
    body = join(
        tag("header", tag("p", tag("a", f"GPUs of {host}", href="../")), tag("h1", f"Job {id}"), _connection()),
        tag(
            "main",
            tag("div", details, id="job"),
            _section(
                "log",
                "Output",
                tag("p", about_log, id="about-log"),
                tag("pre", log, id="log", tabindex=0, aria_label=f"Output of job {id}"),
            ),
        ),
    )
    return document(f"Job {id} on {host}", body, f"{id}/stream", base="../", refresh=str(id))


def refusal_page(what: str) -> str:
    body = tag(
        "main", tag("h1", "Not shown"), tag("p", what), tag("p", "gpulease prints the address when it starts the page.")
    )
    return document("gpulease", body, "")


# -------------------------------------------------------------------- as text


def status_text(picture: PagePicture, now: float) -> str:
    terminal = Terminal(StringIO())
    terminal.unicode, terminal.width = True, 80
    shown = lines(picture.document(), terminal, now) if picture.status else []
    if picture.hosts:
        shown += [*([""] if shown else []), *status_lines(picture.hosts, terminal, now)]
    return "\n".join([*shown, *([picture.trouble] if picture.trouble else [])]) + "\n"
