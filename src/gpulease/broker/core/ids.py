"""Many ids as a few ranges: a hundred thousand jobs of one batch are two numbers."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class Ids:
    __slots__ = ("_firsts", "_lasts", "count")

    def __init__(self, ids: Iterable[int]) -> None:
        """In order."""
        self._firsts, self._lasts = array("q"), array("q")
        self.count = 0  # of ids
        for id in ids:
            if self._lasts and self._lasts[-1] == id - 1:
                self._lasts[-1] = id
            else:
                self._firsts.append(id)
                self._lasts.append(id)
            self.count += 1

    def __len__(self) -> int:
        """How many ranges there are, which is what they cost."""
        return len(self._firsts)

    def __contains__(self, id: int) -> bool:
        at = bisect_right(self._firsts, id) - 1
        return at >= 0 and id <= self._lasts[at]

    def ranges(self, behind: int, most: int, room: int) -> list[tuple[int, int]]:
        """The next ones behind an id: at most so many, with at most so many ids in them."""
        found: list[tuple[int, int]] = []
        for at in range(
            bisect_left(self._lasts, behind + 1), min(len(self), bisect_left(self._lasts, behind + 1) + most)
        ):
            first = max(self._firsts[at], behind + 1)
            last = min(self._lasts[at], first + room - 1)
            found.append((first, last))
            room -= 1 + last - first
            if room <= 0:
                break
        return found
