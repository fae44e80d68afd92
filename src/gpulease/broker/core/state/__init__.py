"""Everything that the broker knows, in four parts, and the only ways to change it.

Each change is made in memory and in the store together, can be undone until it is committed, and raises the revision
if plans are made of what it changes. What is in the store too is changed by the methods; of the rest a table is changed
by its own `put` and `drop`, and a cell is assigned.
Not here: deciding what to change, and telling anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpulease.broker.core.state.devices import Devices
from gpulease.broker.core.state.jobs import Jobs
from gpulease.broker.core.state.requests import Requests
from gpulease.broker.core.state.subscribers import Subscribers
from gpulease.broker.core.state.tables import Changes, Part, Table, cell, table, whole
from gpulease.broker.core.values import NOTHING, About, NoticeChoice
from gpulease.model.peer import Peer
from gpulease.model.store import Document, HistoryEvent, Store
from gpulease.planner import DeviceView, Peak, Policy, Spent, settings
from gpulease.planner.lengths import Sketch
from gpulease.planner.settings import Settings

LEARNT = "learnt "  # begins the keys of sketches among the facts


class Learned(Part):
    """What was learnt of users and of what has ended: who used how much, how long everything ran, how much memory."""

    usage: Table[str, Spent] = table(planned=True)
    records: Table[str, Spent] = table(planned=True)  # of who outlasted what they declared
    peaks: Table[str, Peak] = table(planned=True)  # by shape, the memory that jobs were seen to use
    sketches: Table[str, Sketch] = table(planned=True)  # of how long everything ran
    unsaved: Table[str, None] = table()  # sketches that are to be written
    usage_due: bool = cell(False)  # an alarm to write these is set
    held_sample_due: bool = cell(False)  # an alarm is set to count what leases held, for the history

    def charge(self, usage: Mapping[str, Spent], records: Mapping[str, Spent]) -> None:
        self.usage.replace(usage)
        self.records.replace(records)

    def learn(self, name: str, sketch: Sketch | None) -> None:
        """None forgets it."""
        self.sketches.put_or_drop(name, sketch)
        self.unsaved.put(name, None)

    def write(self) -> None:
        """Fair share may lose a few seconds to a crash; what was granted never does."""
        for name, rows in (("usage", self.usage), ("records", self.records), ("peaks", self.peaks)):
            self.store.write("facts", name, {key: list(value) for key, value in rows.items()})
        for name in list(self.unsaved):
            sketch = self.sketches.get(name)
            self.store.write("facts", f"{LEARNT}{name}", None if sketch is None else {"sketch": list(sketch)})
            self.unsaved.drop(name)


class State(Part):
    about: About = cell(About("", ""))
    settings: Settings = cell(Settings(), planned=whole)
    policy: Policy = cell(Policy(), planned=whole)
    texts: Table[str, str] = table()  # parameters that were set, as they were written; above the config
    config: Mapping[str, str] = cell(NOTHING)  # parameters of the config file
    config_trouble: str | None = cell(None)  # what is wrong with it
    chosen: Table[int, NoticeChoice] = table()  # by user: of what they are told
    backup: tuple[Peer, str] | None = cell(None)  # who copies the state now

    def __init__(self, store: Store, about: About, config: Mapping[str, str] = NOTHING) -> None:
        changes = Changes()
        super().__init__(store, changes)
        self.devices: Devices
        self.requests: Requests
        self.jobs: Jobs
        self.learned: Learned
        self.subscribers: Subscribers
        self._put("devices", Devices(store, changes))
        self._put("requests", Requests(store, changes, self.devices))
        self._put("jobs", Jobs(store, changes))
        self._put("learned", Learned(store, changes))
        self._put("subscribers", Subscribers(changes))
        self.about, self.config = about, config
        self.requests.wall_ahead = about.wall_ahead
        changes.keep()

    # ---------------------------------------------------------------- the whole

    @property
    def revision(self) -> int:
        """Raised by every change that a plan reads."""
        return self.changes.revision

    def touch(self) -> None:
        """Something outside of the state changed that a plan reads: the host's memory, or the time."""
        self.changes.revision += 1

    def commit(self) -> None:
        self.jobs.end_turn()
        if self.store.commit(self.changes.durable):
            self.changes.unwritable = None
        self.changes.keep()

    def rollback(self) -> None:
        self.jobs.end_turn()
        self.store.rollback()
        self.changes.undo()

    def record(self, time: float, what: str, **fields: Any) -> None:
        self.store.append(HistoryEvent(time, what, fields))

    def views(self, holds: Mapping[str, str] | None = None) -> dict[str, DeviceView]:
        """What is known of each device beside the sample; `holds` instead of what the neighbours hold."""
        holds = self.devices.neighbour_holds if holds is None else holds
        return self.devices.views(self.requests.leases.values(), self.about.host, holds)

    # ---------------------------------------------------------------- settings

    def write_setting(self, name: str, text: str | None) -> list[str]:
        """None is the default. Gives complaints about texts that this version cannot read."""
        self.store.write("settings", name, None if text is None else {"text": text})
        self.changes.durable = True
        self.texts.put_or_drop(name, text)
        return self.use_settings()

    def use_settings(self) -> list[str]:
        complaints: list[str] = []
        found, policy = settings.apply({**self.config, **settings.may_be_set(self.texts)}, complaints.append)
        self.settings, self.policy = found, policy
        self.requests.line = self.requests.line.under(policy)
        return complaints

    def choose(self, uid: int, chosen: NoticeChoice | None) -> None:
        """None: the user gets no notices."""
        self.changes.durable = True
        self.chosen.put_or_drop(uid, chosen)
        self.store.write("facts", "notices", {str(one): list(choice) for one, choice in self.chosen.items()})

    @property
    def needs_samples(self) -> bool:
        """Whether the devices are to be followed as they change: for who waits, runs, is shown them or sees them."""
        leases = self.requests.leases
        watched = any("devices" in subscriber.topics for subscriber in self.subscribers.values())
        beside = leases and self.safe_gpu == "on"
        reply = leases and self.chosen  # who holds a GPU that breaks
        return bool(self.requests.line or self.jobs.running or self.requests.resuming or watched or beside or reply)

    @property
    def slots(self) -> int:
        """How many jobs without a GPU may run at a time."""
        asked = self.settings.cpu_jobs
        return self.about.cores if isinstance(asked, str) else asked

    @property
    def safe_gpu(self) -> str:
        """The setting as it is in effect: `auto` is `on` while safe-gpu was seen lately."""
        found = self.settings.safe_gpu == "auto" and "safe-gpu" in self.devices.neighbours_about
        return "on" if found else self.settings.safe_gpu

    # ---------------------------------------------------------------- what is shown

    def manages(self, uid: int) -> bool:
        return uid in (0, self.about.uid)

    def describe(self, now: float) -> Document:
        about = self.about._asdict()
        shown = {name: about[name] for name in ("pid", "kind", "user", "directory", "version")}
        troubles = {"config_trouble": self.config_trouble, "state_trouble": self.changes.unwritable}
        return {**shown, "uptime": now - self.about.began, **troubles, "visible": self.settings.visible}
