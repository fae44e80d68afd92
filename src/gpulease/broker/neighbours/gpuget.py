"""The broker's side of gpuget: its child process, what is kept of its GPUs, and who has the others.

Nothing here waits. A child that ends, or does not answer in time, is replaced by another, which begins with what is
kept; what was asked of it is refused, and meanwhile every GPU that gpuget manages counts as held.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Collection, Iterable, Mapping
from time import monotonic
from typing import Any

from gpulease.broker.child import Child
from gpulease.model.gpuget_address import Address
from gpulease.model.values import Device
from gpulease.protocol.wire import Message, pack

DEADLINE = 10.0  # seconds for an answer: the child waits up to 2 s for each connection and each call
PAUSE = 1.0  # seconds before a child that ended is replaced
ENDED = "the process that talks to its Redis ended unexpectedly"
SILENT = "the process that talks to its Redis does not answer"

Answered = Callable[[int, Mapping[str, str]], None]


class Gpuget:
    """A neighbour of the broker's. GPUs are numbers to gpuget: their indices, in the order of the PCI bus."""

    name = "gpuget"

    def __init__(
        self,
        poll: select.epoll,
        address: Address,
        broker: str,
        answered: Answered,
        changed: Callable[[], None],
        log: Callable[[str], None],
        former: Collection[str] = (),
        left: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._address, self._broker = address, broker
        self._answered, self._changed, self._log = answered, changed, log
        self._former, self._left = former, left  # addresses where something of ours may be left, and is not any more
        self._numbers: dict[str, int] = {}  # by device; empty until the devices are known
        self._leased: frozenset[str] = frozenset()  # devices
        self._claimed: frozenset[str] = frozenset()
        self._wanted: frozenset[str] = frozenset()
        self._told: Message | None = None  # what the child was told last, if nothing was claimed since
        self._claims: dict[int, tuple[tuple[str, ...], float]] = {}  # under way: devices, and when overdue
        self._child = Child(poll, ["gpulease.broker.neighbours.gpuget_child"])
        self._not_before = 0.0
        self._again: float | None = None  # when the broker is told again what is held
        self._report: Message = {"held": {}, "managed": [], "trouble": ["", ""]}  # at first, a claim tells
        self.held: Mapping[str, str] = {}
        self.shown: dict[str, Any] = {"address": address.shown, "prefix": address.prefix, "trouble": None}

    @property
    def due(self) -> float | None:
        """When something is overdue: an answer, a new child, or a word about a device that was refused."""
        moments = [moment for _, moment in self._claims.values()]
        if not self._child.running and self._numbers:
            moments.append(self._not_before)
        return min([*moments, *([] if self._again is None else [self._again])], default=None)

    def owns(self, descriptor: int) -> bool:
        return self._child.running and descriptor == self._child.descriptor

    # ---------------------------------------------------------------- what the broker says

    def see(self, devices: Iterable[Device]) -> None:
        """A device that is missing now may be leased still: it keeps its number."""
        self._numbers |= {one.uuid: one.index for one in devices if one.vendor == "nvidia"}
        if not self._child.running and self._numbers:
            self._start()
        self._judge()

    def claim(self, number: int, devices: tuple[str, ...]) -> None:
        self._claims[number] = (devices, monotonic() + DEADLINE)
        self._told = None
        if not self._send({"claim": number, "gpus": self._numbers_of(devices)}):
            self._refuse_all()

    def tell(self, leased: Iterable[str], claimed: Iterable[str], wanted: Iterable[str]) -> None:
        """Devices of leases or of a check stay ours; the broker waits for devices that the queue would get next."""
        self._leased, self._claimed, self._wanted = frozenset(leased), frozenset(claimed), frozenset(wanted)
        state = self._all()
        if state != self._told:
            self._told = state
            self._send(state)

    def _all(self) -> Message:
        return {"keep": self._numbers_of(self._leased | self._claimed), "want": self._numbers_of(self._wanted)}

    def close(self) -> None:
        """The broker ends: what leases hold stays ours, as they stay held. The child ends by itself."""
        self._part({"keep": self._numbers_of(self._leased), "want": []})

    def hand_over(self) -> None:
        """Another takes its place, at another address or by another way to the same: nothing kept is given back."""
        self._part({**self._all(), "want": []})

    def leave(self) -> None:
        """gpuget is not a neighbour any more: it gets everything back."""
        self._part({"keep": [], "want": []})

    def _part(self, last: Message) -> None:
        self._send(last)
        self._child.close(kill=False)

    def _numbers_of(self, devices: Iterable[str]) -> list[int]:
        return sorted({self._numbers[uuid] for uuid in devices if uuid in self._numbers})

    # ---------------------------------------------------------------- what the child says

    def ready(self, descriptor: int, flags: int) -> None:
        messages = self._child.messages()
        if messages is None:
            return self._ended(ENDED)
        for message in messages:
            self._understand(message)
        return None

    def overdue(self, now: float) -> None:
        """By the clock: a child that did not answer a claim is given up with it, or a new one begins."""
        if self._again is not None and self._again <= now:
            self._again = None
            self._changed()
        if not self._child.running and self._not_before <= now:
            self._start()
        if any(moment <= now for _, moment in self._claims.values()):
            self._ended(SILENT)

    def _understand(self, message: Message) -> None:
        if "left" in message:
            self._left(message["left"])
        elif "claimed" in message:
            devices, _ = self._claims.pop(message["claimed"], ((), 0.0))
            refused = {int(gpu): _words(who) for gpu, who in message["refused"].items()}
            held = {uuid: refused[number] for uuid in devices if (number := self._numbers.get(uuid)) in refused}
            self._answer(message["claimed"], held)
        else:
            self._report = message
            self._judge()

    def _answer(self, number: int, held: Mapping[str, str]) -> None:
        """The broker treats a refused device as held until it hears the holder: soon, if nothing else changes."""
        if held.keys() - self.held.keys() and self._again is None:
            self._again = monotonic() + PAUSE
        self._answered(number, held)

    def _judge(self) -> None:
        """The holder of each device, as reported last. If the broker cannot tell, it treats a device as held."""
        (trouble, whole), managed = self._report["trouble"], self._report["managed"]
        held = {int(gpu): _words(who) for gpu, who in self._report["held"].items()}
        if trouble:
            known = self._numbers.values() if managed is None else managed
            held = dict.fromkeys(known, _words({"why": trouble})) | held
        before = self.held, self.shown
        self.held = {uuid: held[number] for uuid, number in self._numbers.items() if number in held}
        self.shown = {**self.shown, "trouble": whole or None}
        if before[1] != self.shown:
            self._log(whole or f"gpuget's Redis at {self._address.shown} answers")
        if before != (self.held, self.shown):
            self._changed()

    def _ended(self, why: str) -> None:
        self._child.close()
        self._not_before = monotonic() + PAUSE
        self._report = {**self._report, "held": {}, "trouble": [why, f"gpuget: {why}."]}
        self._judge()
        self._refuse_all()

    def _refuse_all(self) -> None:
        claims, self._claims = self._claims, {}
        for number, (devices, _) in claims.items():
            why = _words({"why": self._report["trouble"][0] or ENDED})
            self._answer(number, {uuid: why for uuid in devices if uuid in self._numbers})

    # ---------------------------------------------------------------- the child

    def _start(self) -> None:
        """The address goes through the pipe: everybody sees the words of a process."""
        try:
            self._child.start()
        except OSError as error:
            return self._ended(f"the process that talks to its Redis cannot be started ({error.strerror})")
        self._told = None
        opening = {"open": self._address.text, "former": [one for one in self._former if one != self._address.text]}
        self._send({**opening, "broker": self._broker, "pid": os.getpid(), **self._all()})
        return None

    def _send(self, message: Message) -> bool:
        if self._child.running:
            self._child.send(pack(message))
        return self._child.running


def _words(who: Message) -> str:
    """The holder of a GPU, in words for people."""
    if "why" in who:
        return f"gpuget, as far as is known: {who['why']}"
    whom = "" if who["pid"] is None else f", process {who['pid']}{' of ' * bool(who['user'])}{who['user']}"
    return f"gpuget{whom}{', since ' * bool(who['since'])}{who['since']}"
