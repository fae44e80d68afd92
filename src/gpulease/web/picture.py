"""PURE: everything that the page shows at one moment, as the broker told it, and what of it one viewer may see."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpulease.render.hidden import of_device, of_event, of_job, of_lease
from gpulease.render.metrics import KINDS
from gpulease.render.status_document import unknown

Row = dict[str, Any]


class PagePicture(NamedTuple):
    """Rows are those of `status`, `ls` and `events`; `gpulease help json` has their fields."""

    status: Row  # without its rows, which are below
    devices: tuple[Row, ...] = ()
    leases: tuple[Row, ...] = ()
    line: tuple[Row, ...] = ()
    line_length: int = 0
    jobs: tuple[Row, ...] = ()
    counts: Row = {}  # noqa: RUF012  # never changed
    paused: bool = False
    events: tuple[Row, ...] = ()
    hours: tuple[Row, ...] = ()  # of `history`: the last day, by hour and GPU
    minutes: tuple[Row, ...] = ()  # of `history`: the last minutes, for what is idle now
    usage: tuple[Row, ...] = ()  # of `usage`: the last days, by user
    usage_shown: str = "own"  # the parameter of that name
    hides: bool = True  # whether `hide-commands` is on
    hosts: tuple[Row, ...] = ()  # `hosts[]` of `status --hosts`, where there are several
    trouble: str | None = None  # why the broker cannot be asked
    time: float = 0.0
    heard: float = 0.0  # when the broker last answered

    def document(self) -> Row:
        """As `gpulease status --json` prints it."""
        return {
            **self.status,
            "devices": list(self.devices if self.trouble is None else unknown(self.devices)),
            "leases": list(self.leases),
            "line": list(self.line),
            "line_length": self.line_length,
        }


NOTHING = PagePicture({})


class Viewer(NamedTuple):
    """Who looks. `user` is whose jobs have buttons and logs; "" is nobody's."""

    user: str
    public: bool = False  # sees what everybody may see, though this process may see more
    action_token: str = ""  # without it, nothing but looking


def seen_by(picture: PagePicture, viewer: Viewer) -> PagePicture:
    """What this process was told it may see, so of a page for others only what these may see is left."""
    if not viewer.public:
        return picture
    user = viewer.user
    picture = picture._replace(hosts=tuple(map(_host_for_all, picture.hosts)))
    if picture.usage_shown != "all":
        picture = picture._replace(usage=tuple(row for row in picture.usage if row["name"] == user))
    if not picture.hides:
        return picture
    return picture._replace(
        devices=tuple(of_device(row, user) for row in picture.devices),
        leases=tuple(of_lease(row, user) for row in picture.leases),
        line=tuple(of_lease(row, user) for row in picture.line),
        jobs=tuple(of_job(row, user) for row in picture.jobs),
        events=tuple(of_event(row, user) for row in picture.events),
    )


def _host_for_all(row: Row) -> Row:
    """Whether `hide-commands` is on there is not known here, and whose name it is there neither: so all is hidden.

    What ssh says may name accounts and files of who runs this page.
    """
    answer, host = row["answer"], row["host"]
    try:
        shown = answer and {
            **answer,
            "devices": [of_device(one, "") for one in answer["devices"]],
            "leases": [of_lease(one, "") for one in answer["leases"]],
            "line": [of_lease(one, "") for one in answer["line"]],
        }
    except (KeyError, TypeError, AttributeError):  # of another version
        shown = None
    trouble = None if shown else f"{host} gives no answer."
    return {"host": host, "trouble": trouble, "next_step": None, "answer": shown}


def totals_seen_by(totals: Row, viewer: Viewer, picture: PagePicture) -> Row:
    if not viewer.public or picture.usage_shown == "all":
        return totals
    own = {name: {user: value for user, value in totals[name].items() if user == viewer.user} for name in KINDS}
    return {**totals, **own}


def job_seen_by(job: Row, viewer: Viewer, hides: bool) -> Row:
    return of_job(job, viewer.user) if viewer.public and hides else job
