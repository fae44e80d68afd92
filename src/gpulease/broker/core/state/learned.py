"""What was learnt of users and of those that ended: who used how much, how long everything ran, how much memory."""

from __future__ import annotations

from collections.abc import Mapping

from gpulease.broker.core.state.tables import Part, Table, cell, table
from gpulease.planner import Peak, Spent
from gpulease.planner.lengths import Sketch

LEARNT = "learnt "  # begins the keys of sketches among the facts


class Learned(Part):
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
