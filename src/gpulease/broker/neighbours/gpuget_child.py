"""The child of the broker that talks to gpuget's Redis, so that the broker's loop never waits for it.

It reads messages and writes messages, as `wire` packs them:

    {"open": URL, "former": [URL, ...], "broker": NAME, "pid": PID, "keep": [...], "want": [...]}   the first one
    {"keep": [GPU, ...], "want": [GPU, ...]}  what leases hold, and what the line would get next if it were free
    {"claim": NUMBER, "gpus": [GPU, ...]}     keep these too; answered by {"claimed": NUMBER, "refused": {GPU: WHO}}
    {"held": {GPU: WHO}, "managed": [GPU, ...], "trouble": [SHORT, WHOLE]}    to the broker, whenever that has changed
    {"left": URL}                             nothing of ours is at this former address any more

While Redis is away, `trouble` says so, and what gpuget managed when it was last seen counts as held.
Nobody but the broker starts it: `python -m gpulease.broker.neighbours.gpuget_child`.
"""

from __future__ import annotations

import os
import secrets
import select
import sys
import time
from math import inf
from typing import Any, NamedTuple

from gpulease.broker.neighbours.gpuget_script import Picture, Share, Taker
from gpulease.model.gpuget_address import Address, read_address
from gpulease.protocol.wire import Message, Unpacker, pack
from gpulease.system import identity


class Trouble(NamedTuple):
    """Why nobody can tell what gpuget holds: shortly, and in whole sentences."""

    why: str = ""
    whole: str = ""


CHECK_INTERVAL = 1.0  # seconds between looks at the lists, where Redis tells of changes
SHORT_CHECK_INTERVAL = 0.2  # where it does not
SOON = 0.005  # seconds between looks, however often Redis tells of changes
AGAIN = 1.0  # seconds before Redis is tried again
FORMER_AGAIN = 60.0  # seconds before a former address is tried again
ALIVE = 5.0  # seconds without a call after which the turn of another is over
READ = 1 << 16
LONGEST_MESSAGE = 200  # characters of what went wrong


class GpugetChild:
    def __init__(self) -> None:
        self._address, self._broker, self._pid = Address("", "", "", ""), "", 0
        self._name = f"{secrets.token_hex(4)}:"  # all turns of this child begin with it
        self._former: list[str] = []  # addresses that may have something of ours still
        self._former_at = 0.0  # when they are tried again
        self._other, self._other_since = "", 0.0  # who has our turn, with its count; and since when that is the same
        self._share = Share()
        self._lists: Any = None
        self._picture: Picture | None = None
        self._managed: frozenset[int] | None = None  # when that was last known
        self._trouble = Trouble()
        self._told: Message = {}
        self._look_at = inf  # until it is told where to look
        self._looked = 0.0
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        os.set_blocking(self._woken, False)

    def run(self, source: int) -> None:
        """Until the broker is gone, however it went. What was claimed then may have become a lease, and stays ours."""
        unpacker = Unpacker()
        while True:
            self._reconcile_if_due()
            pause = None if self._next() == inf else max(0.0, self._next() - time.monotonic())
            ready = select.select([source, self._woken], [], [], pause)[0]
            if self._woken in ready:
                os.read(self._woken, READ)
                if self._lists is not None:
                    self._look_at = min(self._look_at, self._looked + SOON)
            if source in ready:
                data = os.read(source, READ)
                if not data:
                    self._share = self._share.alone()
                    return self._reconcile()
                for message in unpacker.feed(data):
                    self._take(message)

    # ---------------------------------------------------------------- messages

    def _take(self, message: Message) -> None:
        if "open" in message:
            self._address, self._broker, self._pid = read_address(message["open"]), message["broker"], message["pid"]
            self._former = message["former"]
            self._open()
        if "claim" in message:
            return self._claim(message["claim"], message["gpus"])
        self._share = self._share.told(message["keep"], message["want"])
        return self._reconcile()

    def _claim(self, number: int, gpus: list[int]) -> None:
        before = self._share
        self._share = before.claim(gpus)
        self._reconcile()
        refused = {str(gpu): who for gpu in gpus if (who := self._why_not(gpu)) is not None}
        self._share = self._share.give(gpu for gpu in gpus if str(gpu) in refused and gpu not in before.kept)
        self._send({"claimed": number, "refused": refused})

    def _why_not(self, gpu: int) -> Message | None:
        """Why a GPU is not ours now, unless it is, or gpuget has nothing to do with it."""
        seen = self._picture
        if seen is None:
            return {"why": self._trouble.why}
        if gpu in seen.held:
            return _who(seen.held[gpu])
        if gpu in seen.ours or seen.initialised:
            return None
        return {"why": _emptied(self._address).why}

    def _send(self, message: Message) -> None:
        sys.stdout.buffer.write(pack(message))
        sys.stdout.buffer.flush()

    # ---------------------------------------------------------------- the lists

    def _next(self) -> float:
        due = self._share.due()
        return self._look_at if due is None or self._lists is None else min(due, self._look_at)

    def _reconcile_if_due(self) -> None:
        now = time.monotonic()
        if now < self._next():
            return
        if self._lists is None:
            self._open()
        self._reconcile()

    def _reconcile(self) -> None:
        """Ask Redis to make the lists agree; tell the broker what has changed."""
        if self._lists is not None and not self._reconciled():
            self._open()  # a turn that is over is followed by another at once: the database was emptied
            if self._lists is not None:
                self._reconciled()
        self._tell()
        if self._former and not self._trouble.why and self._former_at <= time.monotonic():
            self._leave_former()

    def _leave_former(self) -> None:
        """Only now that what leases hold is ours here: the former address may lead to the same lists."""
        self._former_at = time.monotonic() + FORMER_AGAIN
        for text in [*self._former]:
            try:
                left = self._lists.give_back_at(read_address(text))
            except Exception:
                continue  # the address has a password that is no longer right, or the server is gone
            if left:
                self._former.remove(text)
                self._send({"left": text})

    def _reconciled(self) -> bool:
        """False when it is worth another try."""
        try:
            self._reconcile_once()
        except Exception as trouble:
            if self._is_ousted(str(trouble)):
                return True
            self._lost(trouble)
            return not str(trouble).startswith("TURN")
        self._trouble = Trouble() if self._known() else _emptied(self._address)
        return True

    def _is_ousted(self, said: str) -> bool:
        """By somebody alive: then two brokers have one list, and taking it from each other gives GPUs away."""
        now = time.monotonic()
        if not said.startswith("TURN of ") or said.startswith(f"TURN of {self._name}"):
            return False
        if said != self._other:
            self._other, self._other_since = said, now
        self._picture, self._trouble, self._look_at = None, _ousted(self._address), now + CHECK_INTERVAL
        return now < self._other_since + ALIVE

    def _reconcile_once(self) -> None:
        now = self._looked = time.monotonic()
        self._picture = self._lists.reconcile(self._share.stay(now))
        self._share = self._share.saw(self._picture, now)
        self._lists.wait_with(self._share.waiting(self._picture))
        self._look_at = now + (CHECK_INTERVAL if self._lists.told else SHORT_CHECK_INTERVAL)

    def _known(self) -> bool:
        """A database without any of gpuget's lists was emptied, or gpuget has not made them yet."""
        assert self._picture is not None
        if self._picture.initialised or self._picture.managed:
            self._managed = self._picture.managed
            return True
        return False

    def _open(self) -> None:
        try:
            from gpulease.broker.neighbours.gpuget_lists import Lists

            self._lists = Lists(self._address, self._broker, self._pid, self._wake, self._name)
        except Exception as trouble:
            self._lost(trouble)

    def _lost(self, trouble: Exception) -> None:
        """Whatever it was, another connection begins with a turn of its own."""
        lists, self._lists, self._picture = self._lists, None, None
        self._trouble = _message(trouble, self._address)
        self._look_at = time.monotonic() + AGAIN
        if lists is not None:
            lists.close()

    def _wake(self) -> None:
        try:
            os.write(self._waker, b"!")
        except BlockingIOError:
            pass  # it has been woken already

    def _tell(self) -> None:
        held = {} if self._picture is None else {str(gpu): _who(one) for gpu, one in self._picture.held.items()}
        managed = None if self._managed is None else sorted(self._managed)
        message: Message = {"held": held, "managed": managed, "trouble": list(self._trouble)}
        if message != self._told:
            self._told = message
            self._send(message)


# -------------------------------------------------------------------- words


def _who(taker: Taker) -> Message:
    """The process that GPU.py wrote down is on this host, or it is not known any more."""
    uid = None if taker.pid is None else identity.user_of(taker.pid)
    return {"pid": taker.pid, "user": "" if uid is None else identity.user_name(uid), "since": taker.since}


def _message(trouble: Exception, address: Address) -> Trouble:
    if isinstance(trouble, ModuleNotFoundError):
        step = "Install it for the broker: `pip install 'gpulease[gpuget]'`."
        return Trouble("Python's package redis is missing", f"The Python package redis is missing. {step}")
    text = str(trouble).rstrip(".") or type(trouble).__name__
    for secret in address.secrets:
        text = text.replace(secret, "***")
    text = "".join(
        one if one.isprintable() else "?" for one in text[:LONGEST_MESSAGE]
    )  # the server's own words may be in it
    return Trouble("its Redis cannot be asked", f"gpuget's Redis at {address.shown} cannot be asked: {text}.")


def _emptied(address: Address) -> Trouble:
    step = "Run `GPU.py --redis-manage-all`, or `gpulease set neighbours.gpuget none`."
    return Trouble("its lists are not in Redis", f"gpuget's lists are not in {address.shown}. {step}")


def _ousted(address: Address) -> Trouble:
    why = "another broker uses this one's list in Redis"
    step = "End the one whose state was copied from the other's, or remove its state."
    return Trouble(why, f"gpuget at {address.shown}: {why}. {step}")


def main() -> int:
    try:
        GpugetChild().run(sys.stdin.fileno())
    except (ConnectionError, KeyboardInterrupt):
        pass
    os._exit(0)  # threads that wait in gpuget's line are not waited for


if __name__ == "__main__":
    sys.exit(main())
