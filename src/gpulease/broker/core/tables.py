"""Dictionaries whose changes can be undone, and the list of what to undo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_ABSENT: Any = object()


class Changes:
    """What has changed since the last commit, as steps back; and the number of changes that a plan reads."""

    __slots__ = ("_back", "revision")

    def __init__(self) -> None:
        self._back: list[tuple[Any, ...]] = []
        self.revision = 0

    @property
    def count(self) -> int:
        return len(self._back)

    def add(self, step: Callable[..., object], *arguments: Any) -> None:
        self._back.append((step, *arguments))

    def keep(self) -> None:
        self._back.clear()

    def undo(self) -> None:
        """As it was at the last commit. The revision goes on: what was planned in between is not valid any more."""
        while self._back:
            step, *arguments = self._back.pop()
            step(*arguments)
        self.revision += 1


class Table(dict[K, V]):
    """Read like any dictionary; changed by the state alone, through `put` and `drop`."""

    __slots__ = ("_changes", "_planned")

    def __init__(self, changes: Changes, planned: bool = False) -> None:
        """`planned`: plans are made of it, so that each change raises the revision."""
        super().__init__()
        self._changes, self._planned = changes, planned

    def put(self, key: K, value: V) -> None:
        self._remember(key)
        dict.__setitem__(self, key, value)

    def drop(self, key: K) -> None:
        """Without an error when it is not there."""
        if key in self:
            self._remember(key)
            dict.__delitem__(self, key)

    def _remember(self, key: K) -> None:
        before = dict.get(self, key, _ABSENT)
        if before is _ABSENT:
            self._changes.add(dict.__delitem__, self, key)
        else:
            self._changes.add(dict.__setitem__, self, key, before)
        if self._planned:
            self._changes.revision += 1

    def __setitem__(self, key: K, value: V) -> NoReturn:
        raise TypeError("a table is changed by `put`, which can be undone")

    def __delitem__(self, key: K) -> NoReturn:
        raise TypeError("a table is changed by `drop`, which can be undone")
