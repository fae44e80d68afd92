"""Why somebody waits: a code with its fields, the sentence made from them, and a few words for a table.

Not here: deciding. A reason is worked out from the board as the plan left it, so it is true of that plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpulease.model.quantities import span_text

Value = str | int | float | None | tuple[str, ...] | tuple[int, ...]

BLOCKED = "blocked"
CLOSED = "closed"
NOT_YET = "not-yet"
IMPOSSIBLE = "impossible"
OVER_LIMIT = "over-limit"
QUOTA = "quota"
CAPPED = "capped"
NO_SLOT = "no-slot"
HOLDING = "holding"
HELD = "held"
UNAVAILABLE = "unavailable"
BUSY = "busy"

LONGEST = 24  # characters of a short form
NAMED = 3  # of those who go first
NEVER = (IMPOSSIBLE, OVER_LIMIT)  # waiting does not help


def of_user(kind: str, user: str) -> str:
    """In `closed`: requests of this kind of one user."""
    return f"{kind} of {user}"


class Reason(NamedTuple):
    code: str
    fields: Mapping[str, Value]

    @property
    def sentence(self) -> str:
        return SENTENCES[self.code](self.fields) + _passed(self.fields)

    @property
    def short(self) -> str:
        return fitted(SHORT_FORMS[self.code](self.fields))

    def __str__(self) -> str:
        return self.sentence


def size_text(amount: Value) -> str:
    """Bytes as people write them."""
    number = float(amount) if isinstance(amount, int | float) else 0.0
    for unit in ("B", "K", "M", "G"):
        if abs(number) < 1024 or unit == "G":
            return f"{number:.4g}{unit}"
        number /= 1024
    return f"{number:.4g}G"


def wanted_text(fields: Mapping[str, Value]) -> str:
    packed = fields.get("packed")
    if fields.get("memory") is not None:
        return f"{size_text(fields['memory'])} of one device" + (", as similar jobs used" if packed else "")
    if packed:
        return "one device alone, because its memory use has not been measured yet"
    one, many = ("one MIG instance", "MIG instances") if fields.get("mig") else ("one device", "devices")
    return one if fields["gpus"] == 1 else f"{fields['gpus']} {many} of one host"


def _join(values: Value) -> str:
    return ", ".join(str(value) for value in values) if isinstance(values, tuple) else str(values)


def _given(fields: Mapping[str, Value]) -> str:
    return str(fields["text"])


def _not_yet(fields: Mapping[str, Value]) -> str:
    return f"It asked to start later, in {span_text(float(str(fields['seconds'])))}."


def _impossible(fields: Mapping[str, Value]) -> str:
    several = fields.get("instances")
    return _cannot(fields) + (f" Its {several} MIG instances are not GPUs; --mig asks for them." if several else "")


def _cannot(fields: Mapping[str, Value]) -> str:
    if fields.get("models"):
        return f"There is no {_join(fields['models']).replace(', ', ' or ')} here, but {_join(fields['here'])}."
    if not fields["most"]:
        return "No device here matches what it asks for: its name, devices or memory."
    if fields.get("memory") is not None:
        most = size_text(fields["most"])
        return f"It wants {wanted_text(fields)}, and the most that a matching device can share is {most}."
    if fields["hosts"] == 1:
        what = "MIG instances" if fields.get("mig") else "devices"
        return f"It wants {fields['gpus']} {what}, and this machine has {fields['most']} that match."
    return f"It wants {wanted_text(fields)}, and no host has more than {fields['most']} that match."


def _quota(fields: Mapping[str, Value]) -> str:
    used = float(str(fields["used"]))
    return f"{_limit(fields)} is reached: {used:.{3 if used < 100 else 9}g} in use."


def _over_limit(fields: Mapping[str, Value]) -> str:
    return f"It wants {wanted_text(fields)}. {_limit(fields)} never allows that."


def _limit(fields: Mapping[str, Value]) -> str:
    scope, name = fields["scope"], fields["name"]
    whose = f"priority {name} and later" if scope == "priority" else f"{scope} {name}"
    unit = "GPUs" if fields["what"] == "gpus" else "shares"
    return f"The limit of {fields['most']} {unit} for {whose}"


def _holding(fields: Mapping[str, Value]) -> str:
    expected = fields["seconds"]
    when = "" if expected is None else f", expected in {span_text(float(str(expected)))}"
    return f"Devices {_join(fields['devices'])} are held for it as they become free{when}."


def _held(fields: Mapping[str, Value]) -> str:
    said = f"It wants {wanted_text(fields)}; free devices are held for {_join(fields['holders'])}."
    if fields["doubted"] is None:
        return said
    return f"{said} The time that it declares is not believed: leases of {fields['doubted']} outlasted theirs."


def _unavailable(fields: Mapping[str, Value]) -> str:
    return f"It wants {wanted_text(fields)}; out of reach are {_join(fields['out_of_reach'])}."


def _passed(fields: Mapping[str, Value]) -> str:
    """Later requests that go first, and until when."""
    fairer, shorter = fields.get("fairer"), fields.get("shorter")
    said = ""
    if isinstance(fairer, tuple) and fairer:
        said += f" Fair share: {_some(fairer)}, who had less GPU time lately, {_goes(fairer)} first."
    if isinstance(shorter, tuple) and shorter:
        whom = (
            f"{_some(shorter)}, which is shorter,"
            if len(shorter) == 1
            else f"{len(shorter)} shorter ones ({_some(shorter)})"
        )
        said += f" {whom} may go first, and no shorter one after {span_text(float(str(fields['turn'])))}."
    return said


def _some(values: tuple[object, ...]) -> str:
    return ", ".join(map(str, values[:NAMED])) + f" and {len(values) - NAMED} more" * (len(values) > NAMED)


def _goes(values: tuple[object, ...]) -> str:
    return "goes" if len(values) == 1 else "go"


def _range(fields: Mapping[str, Value]) -> str:
    """When: in half of all cases, in nine of ten, and by limits that are enforced, which alone is sure."""
    said = ""
    if fields.get("missed") is not None:
        said = f". It should have started {span_text(float(str(fields['missed'])))} ago, and when it will is unknown"
    elif fields.get("seconds") is not None:
        likely, latest = (span_text(float(str(fields[name]))) for name in ("seconds", "latest"))
        said = f", likely in {likely}" + (f", 9 times in 10 within {latest}" if latest != likely else "")
    limits = fields.get("limits")
    if fields.get("sure") is None or not isinstance(limits, tuple):
        return said
    whose = f" (by the limit{'s' * (len(limits) > 1)} of {_some(limits)})" if limits else ""
    return f"{said}, at the latest in {span_text(float(str(fields['sure'])))}{whose}"


def _busy(fields: Mapping[str, Value]) -> str:
    when = _range(fields)
    if fields["crowded"]:
        return f"It wants {wanted_text(fields)}; on device {_join(fields['crowded'])} no more leases are allowed{when}."
    if fields.get("memory") is not None:
        return f"It wants {wanted_text(fields)}; at most {size_text(fields['free'])} is free on one{when}."
    return f"It wants {wanted_text(fields)}; {fields['free']} of {fields['matching']} are free{when}."


SENTENCES: dict[str, Callable[[Mapping[str, Value]], str]] = {
    BLOCKED: _given,
    CLOSED: _given,
    NOT_YET: _not_yet,
    IMPOSSIBLE: _impossible,
    OVER_LIMIT: _over_limit,
    QUOTA: _quota,
    CAPPED: lambda fields: f"At most {fields['most']} of this sweep run at once{_range(fields)}.",
    NO_SLOT: lambda fields: f"At most {fields['most']} jobs without a GPU run at once (cpu-jobs).",
    HOLDING: _holding,
    HELD: _held,
    UNAVAILABLE: _unavailable,
    BUSY: _busy,
}

# -------------------------------------------------------------------- the short forms


def fitted(text: str) -> str:
    """At most as long as a short form may be; of what is longer the beginning."""
    text = " ".join(text.split()) or "waits"
    return text if len(text) <= LONGEST else text[: LONGEST - 3].rstrip(" ,;:") + "..."


def _count(number: Value) -> str:
    """A number in at most six characters, or nearly."""
    value = float(str(number))
    return f"{value:g}" if abs(value) < 1e6 else f"{value:.1e}".replace("e+0", "e").replace("e+", "e")


def _bytes(amount: Value) -> str:
    number = float(str(amount))
    for unit in "BKMGTP":
        if abs(number) < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1024
    return f"{number:.1g}E"


def _size(fields: Mapping[str, Value], of: str) -> str:
    return _count(fields[of]) if fields.get("memory") is None else _bytes(fields[of])


def _wanted(fields: Mapping[str, Value]) -> str:
    return f"needs {_size(fields, 'gpus' if fields.get('memory') is None else 'memory')}"


def _short_impossible(fields: Mapping[str, Value]) -> str:
    return f"{_wanted(fields)}, has {_size(fields, 'most')}" if fields["most"] else "no such GPU"


def _short_quota(fields: Mapping[str, Value]) -> str:
    return f"quota {fields['what']}={_count(fields['most'])}"


def _first_of(values: Value) -> str:
    several = values if isinstance(values, tuple) else (values,)
    return f"{several[0] if several else 'others'}" + (f" +{len(several) - 1}" if len(several) > 1 else "")


def _short_unavailable(fields: Mapping[str, Value]) -> str:
    out = fields["out_of_reach"]
    if isinstance(out, tuple) and len(out) == 1:
        return "GPU " + str(out[0]).replace(" (", " ").rstrip(")")
    return f"{_count(len(out)) if isinstance(out, tuple) else 'all'} GPUs out of reach"


def _short_busy(fields: Mapping[str, Value]) -> str:
    if fields["crowded"]:
        return f"GPU {_first_of(fields['crowded'])} has its leases"
    return f"{_wanted(fields)}, {_size(fields, 'free')} free"


SHORT_FORMS: dict[str, Callable[[Mapping[str, Value]], str]] = {
    BLOCKED: lambda fields: str(fields["short"]),
    CLOSED: lambda fields: str(fields["short"]),
    NOT_YET: lambda fields: f"asked for in {span_text(float(str(fields['seconds'])))}",
    IMPOSSIBLE: _short_impossible,
    OVER_LIMIT: lambda fields: f"over {_short_quota(fields)}",
    QUOTA: _short_quota,
    CAPPED: lambda fields: f"at most {_count(fields['most'])} at once",
    NO_SLOT: lambda fields: f"cpu-jobs={_count(fields['most'])}",
    HOLDING: lambda fields: f"next, GPU {_first_of(fields['devices'])} kept",
    HELD: lambda fields: f"kept for {_first_of(fields['holders'])}",
    UNAVAILABLE: _short_unavailable,
    BUSY: _short_busy,
}
