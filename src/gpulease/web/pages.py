"""Whole pages around the fragments: what a browser without JavaScript sees, and what `curl` gets as text."""

from __future__ import annotations

from io import StringIO

from gpulease.render.hosts import status_lines
from gpulease.render.status import lines
from gpulease.render.terminal import Terminal
from gpulease.web.fragments import Sections
from gpulease.web.markup import Markup, join, tag
from gpulease.web.picture import PagePicture

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
