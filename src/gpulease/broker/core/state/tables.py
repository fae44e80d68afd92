"""Tables and cells: what the state is made of, whose changes can be undone, and the list of what to undo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn, TypeVar, cast

from gpulease.model.store import Store

K = TypeVar("K")
V = TypeVar("V")

_ABSENT: Any = object()


class Changes:
    """What has changed since the last commit, as steps back; and the number of changes that a plan reads."""

    __slots__ = ("_back", "durable", "revision", "unwritable")

    def __init__(self) -> None:
        self._back: list[tuple[Any, ...]] = []
        self.revision = 0
        self.durable = False  # whether what was written must also survive a power cut
        self.unwritable: str | None = None  # why the last commit failed, until one succeeds

    @property
    def count(self) -> int:
        return len(self._back)

    def add(self, step: Callable[..., object], *arguments: Any) -> None:
        self._back.append((step, *arguments))

    def keep(self) -> None:
        self._back.clear()
        self.durable = False

    def undo(self) -> None:
        """As it was at the last commit. The revision goes on: what was planned in between is not valid any more."""
        while self._back:
            step, *arguments = self._back.pop()
            step(*arguments)
        self.revision += 1
        self.durable = False


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

    def put_or_drop(self, key: K, value: V | None) -> None:
        """None drops it."""
        if value is None:
            self.drop(key)
        else:
            self.put(key, value)

    def fill(self, rows: Mapping[K, V]) -> None:
        for key, value in rows.items():
            self.put(key, value)

    def replace(self, rows: Mapping[K, V]) -> None:
        """These and no others. Rows that stay as they are do not count as changes."""
        for key in [key for key in self if key not in rows]:
            self.drop(key)
        for key, value in rows.items():
            if self.get(key) != value:
                self.put(key, value)

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


class _Made:
    """Made new for each part, and never replaced: a table, or what is kept at hand during a turn."""

    def __init__(self, make: Callable[[Changes], object]) -> None:
        self.make = make


class _Cell(_Made):
    def __init__(self, make: Callable[[Changes], object], read: Callable[[Any], object] | None) -> None:
        super().__init__(make)
        self.read = read


def table(planned: bool = False) -> Table[Any, Any]:
    """Declares a table of a part. `planned`: plans are made of it."""
    return cast("Table[Any, Any]", _Made(lambda changes: Table(changes, planned)))


def at_hand() -> dict[Any, Any]:
    """Declares a dictionary that no undo concerns: copies of what the store has."""
    return cast("dict[Any, Any]", _Made(lambda changes: {}))


def cell(first: V, planned: Callable[[V], object] | None = None) -> V:
    """Declares a value of a part that can be assigned. `planned`: what plans read of it."""
    return cast(V, _Cell(lambda changes: first, planned))


def cell_of(make: Callable[[], V]) -> V:
    """The same, for a first value that each part needs its own of."""
    return cast(V, _Cell(lambda changes: make(), None))


def whole(value: object) -> object:
    """Plans read all of it."""
    return value


class Part:
    """A part of the state, as its class declares it: nothing can be assigned but its cells, and each time with undo.

    The declarations leave the class when it is made, so that reading a cell is reading an attribute: a descriptor would
    cost three times as much.
    """

    _declared: ClassVar[dict[str, _Made]] = {}

    def __init_subclass__(cls) -> None:
        cls._declared = {name: one for name, one in vars(cls).items() if isinstance(one, _Made)}
        for name in cls._declared:
            delattr(cls, name)

    def __init__(self, store: Store, changes: Changes) -> None:
        self.store: Store
        self.changes: Changes
        self._put("store", store)
        self._put("changes", changes)
        for name, one in self._declared.items():
            self._put(name, one.make(changes))

    def _put(self, name: str, value: object) -> None:
        """For good."""
        object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        one = self._declared.get(name)
        if not isinstance(one, _Cell):
            raise AttributeError(f"{type(self).__name__} has no cell {name!r}")
        before = getattr(self, name)
        self.changes.add(object.__setattr__, self, name, before)
        object.__setattr__(self, name, value)
        if one.read is not None and one.read(before) != one.read(value):
            self.changes.revision += 1
