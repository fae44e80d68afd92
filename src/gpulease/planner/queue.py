"""A sorted queue in blocks that finds the first entry within limits without looking at the others.

Every block knows the smallest size, the soonest start and the shortest duration in it, so a search
passes over whole blocks. Not here: what the numbers mean; planner/line.py decides that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterator
from math import inf
from typing import NamedTuple

BLOCK = 128  # entries; a block is split at twice as many

Key = tuple[float, float, str]  # what decides, what decides between equal ones, and the id


class Entry(NamedTuple):
    id: str
    size: int  # devices, or bytes of a share
    ready: float  # not before; -inf when nobody said
    duration: float  # inf when nobody said


class Block:
    __slots__ = ("duration", "entries", "keys", "loose", "ready", "size")

    def __init__(self, keys: list[Key], entries: list[Entry]) -> None:
        self.keys = keys
        self.entries = entries
        self.measure()

    def measure(self) -> None:
        self.loose = False  # whether the bounds may be lower than need be
        self.size = min(entry.size for entry in self.entries)
        self.ready = min(entry.ready for entry in self.entries)
        self.duration = min(entry.duration for entry in self.entries)

    def insert(self, key: Key, entry: Entry) -> None:
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.entries.insert(at, entry)
        self._widen(entry)

    def append(self, key: Key, entry: Entry) -> None:
        """Behind all others, which is where most come."""
        self.keys.append(key)
        self.entries.append(entry)
        self._widen(entry)

    def _widen(self, entry: Entry) -> None:
        _, size, ready, duration = entry
        if size < self.size:
            self.size = size
        if ready < self.ready:
            self.ready = ready
        if duration < self.duration:
            self.duration = duration

    def delete(self, key: Key) -> None:
        at = bisect_left(self.keys, key)
        if at == len(self.keys) or self.keys[at] != key:
            raise KeyError(key)
        del self.keys[at]
        del self.entries[at]
        self.loose = True  # measured again only once a search found nothing here

    def first(self, size: int, ready: float, duration: float, skip: Container[str]) -> tuple[Key, Entry] | None:
        if self.size > size or self.duration > duration or self.ready > ready:
            return None
        for at, entry in enumerate(self.entries):
            within = entry.size <= size and entry.duration <= duration and entry.ready <= ready
            if within and entry.id not in skip:
                return self.keys[at], entry
        if self.loose:
            self.measure()
        return None


class Queue:
    """Entries in the order of their keys."""

    __slots__ = ("blocks", "firsts")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.firsts: list[Key] = []

    def __bool__(self) -> bool:
        return bool(self.blocks)

    def __iter__(self) -> Iterator[tuple[Key, Entry]]:
        for block in self.blocks:
            yield from zip(block.keys, block.entries, strict=True)

    def _block_of(self, key: Key) -> int:
        at = bisect_left(self.firsts, key)
        found = at < len(self.firsts) and self.firsts[at] == key
        return at if found else max(0, at - 1)

    def add(self, key: Key, entry: Entry) -> None:
        last = self.blocks[-1] if self.blocks else None
        if last is None or (key > last.keys[-1] and len(last.keys) >= 2 * BLOCK):
            self.blocks.append(Block([key], [entry]))
            self.firsts.append(key)
            return
        if key > last.keys[-1]:
            return last.append(key, entry)
        at = self._block_of(key)
        block = self.blocks[at]
        block.insert(key, entry)
        self.firsts[at] = block.keys[0]
        if len(block.keys) > 2 * BLOCK:
            self._split(at)

    def extend(self, many: list[tuple[Key, Entry]]) -> None:
        """Several, in order; quicker than one by one where they come behind all others."""
        if self.blocks and many and many[0][0] <= self.blocks[-1].keys[-1]:
            for key, entry in many:
                self.add(key, entry)
            return
        for at in range(0, len(many), BLOCK):
            keys, entries = map(list, zip(*many[at : at + BLOCK], strict=True))
            self.blocks.append(Block(keys, entries))
            self.firsts.append(keys[0])

    def _split(self, at: int) -> None:
        old = self.blocks[at]
        halves = Block(old.keys[:BLOCK], old.entries[:BLOCK]), Block(old.keys[BLOCK:], old.entries[BLOCK:])
        self.blocks[at : at + 1] = halves
        self.firsts[at : at + 1] = [half.keys[0] for half in halves]

    def remove(self, key: Key) -> None:
        if not self.blocks:
            raise KeyError(key)
        at = self._block_of(key)
        block = self.blocks[at]
        block.delete(key)
        if block.keys:
            self.firsts[at] = block.keys[0]
        else:
            del self.blocks[at], self.firsts[at]

    def first(
        self, until: float, size: int, ready: float, duration: float, skip: Container[str]
    ) -> tuple[Key, Entry] | None:
        """The first entry, up to the key `until`, with at most these values and not in `skip`."""
        for at, block in enumerate(self.blocks):
            if self.firsts[at][0] > until:
                return None
            found = block.first(size, ready, duration, skip)
            if found is not None:
                return found if found[0][0] <= until else None
        return None

    def after(self, moment: float) -> float | None:
        """The smallest key beyond `moment`."""
        at = max(0, bisect_left(self.firsts, (moment, inf, "")) - 1)
        for block in self.blocks[at : at + 2]:
            for key in block.keys:
                if key[0] > moment:
                    return key[0]
        return None

    def before(self, key: Key) -> int:
        """How many entries have a smaller key."""
        if not self.blocks:
            return 0
        at = self._block_of(key)
        return sum(len(block.keys) for block in self.blocks[:at]) + bisect_left(self.blocks[at].keys, key)
