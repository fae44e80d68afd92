"""Who holds a claim, in words: the user by the kernel's word, the rest as the holder says of itself.

What it says is a line of JSON. It is bounded, cleaned, and only ever shown.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable
from typing import Any

from gpulease.system import claims as names
from gpulease.system import strangers
from gpulease.system.claims import ClaimHolder

LONGEST, LETTERS = 1024, 100  # bytes of what a holder says, and characters of a text in it
TEXTS = ("broker", "kind", "user", "note")
PATIENCE = 0.1  # seconds for all holders to say it, where no broker has asked them before


def say(**told: str | float | None) -> bytes:
    line = json.dumps(told).encode() + b"\n"
    return line if len(line) <= LONGEST else say(**{**told, "note": None})


def read(line: bytes) -> dict[str, Any]:
    """What can be shown of it."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(told, dict):
        return {}
    since = told.get("since")
    sound = isinstance(since, (int, float)) and 0 < since < 1e11
    return {**{name: _text(told.get(name)) for name in TEXTS}, "since": since if sound else None}


def _text(told: object) -> str | None:
    if not isinstance(told, str):
        return None
    return "".join(letter for letter in told[:LETTERS] if letter.isprintable()) or None


def whose(holder: ClaimHolder, name_of: Callable[[int], str]) -> str:
    return "somebody" if holder.uid is None else name_of(holder.uid)


def through(user: str, told: dict[str, Any]) -> str:
    """To stand behind the word `held`."""
    own, note = f"{user}'s own gpulease", f": {told['note']}" if told.get("note") else ""
    kinds = {"system": f"the system's gpulease, of {user}", "shared": f"{user}'s shared gpulease"}
    return f"through {kinds.get(told.get('broker') or '', own)}{note}"


def shown(holder: ClaimHolder, user: str, told: dict[str, Any]) -> dict[str, Any]:
    """A `holder` of the status document."""
    rest = {name: told.get(name) for name in ("broker", "kind", "since", "note")}
    return {"user": user, "uid": holder.uid, "pid": holder.pid, **rest, "for": told.get("user")}


def holders(machine: str, devices: Iterable[str]) -> dict[str, tuple[ClaimHolder, dict[str, Any]]]:
    """Of these devices, for a client whose user has no broker yet."""
    found: dict[str, tuple[ClaimHolder, dict[str, Any]]] = {}
    until = time.monotonic() + PATIENCE
    for uuid in devices:
        for system in (False, True):
            asked = names.ask(names.claim_name(machine, uuid, system))
            if asked is None or uuid in found:
                continue
            connected, holder = asked
            found[uuid] = holder, {}
            if connected is not None:
                connected.settimeout(max(0.001, until - time.monotonic()))
                with contextlib.suppress(OSError):
                    found[uuid] = holder, read(strangers.receive(connected, LONGEST))
                strangers.close(connected)
    return found
