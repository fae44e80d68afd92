"""PURE: what is to stay ours of gpuget's GPUs, and for how many more we stand in its line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpulease.broker.neighbours.gpuget_script import Picture

CONSIDERED = 0.5  # seconds for the broker to say whether it wants a GPU that came to us
MOST = 32  # connections that wait in gpuget's line


class Share(NamedTuple):
    kept: frozenset[int] = frozenset()  # held by leases, or claimed for one
    wanted: frozenset[int] = frozenset()  # what the broker's line would get next, if it were free
    claimed: frozenset[int] = frozenset()  # since the broker last said what it wants; it wants less by these
    offers: tuple[tuple[int, float], ...] = ()  # what came to us and is nobody's yet, and when

    def told(self, kept: Iterable[int], wanted: Iterable[int]) -> Share:
        """All of it, as the broker says it each time."""
        return self._replace(kept=frozenset(kept), wanted=frozenset(wanted), claimed=frozenset())

    def claim(self, gpus: Iterable[int]) -> Share:
        return self._replace(kept=self.kept | frozenset(gpus), claimed=self.claimed | frozenset(gpus))

    def give(self, gpus: Iterable[int]) -> Share:
        return self._replace(kept=self.kept - frozenset(gpus), claimed=self.claimed - frozenset(gpus))

    def alone(self) -> Share:
        """Nobody is left to want anything: what was offered goes back."""
        return self._replace(wanted=frozenset(), offers=())

    def saw(self, picture: Picture, now: float) -> Share:
        """What is ours and not kept was brought by a connection that waited."""
        before = dict(self.offers)
        return self._replace(offers=tuple((gpu, before.get(gpu, now)) for gpu in sorted(picture.ours - self.kept)))

    def stay(self, now: float) -> frozenset[int]:
        return self.kept | {gpu for gpu, since in self.offers if gpu in self.wanted or now < since + CONSIDERED}

    def due(self) -> float | None:
        """When the next offer goes back."""
        return min((since + CONSIDERED for gpu, since in self.offers if gpu not in self.wanted), default=None)

    def waiting(self, picture: Picture) -> int:
        """How many connections wait. None while something is idle: what is wanted of that is claimed by its number."""
        if picture.idle or not picture.held:
            return 0
        got = len(self.offers) + len(self.claimed - self.wanted)
        return min(MOST, max(0, len(self.wanted - self.kept) - got))
