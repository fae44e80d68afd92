"""PURE: a request from what people give, as options or as arguments, to the fields of a message.

The one way to build it, for every command and for Python. `said` gives an argument the caller's name for it, so that
an error speaks of `--for` on the command line and of `duration` in Python.
"""

from __future__ import annotations

from gpulease.errors import UsageError
from gpulease.model.quantities import LONGEST, parse_bytes, parse_moment, parse_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Said = Callable[[str], str]

UNSET = "Leave it out, or say what is meant: it may be an unset variable."
LEAST = 1 << 20  # bytes that a number alone may mean
OPTIONS = {"duration": "--for"}


def as_option(name: str) -> str:
    return OPTIONS.get(name) or f"--{name.replace('_', '-')}"


def as_argument(name: str) -> str:
    return name


def request_fields(given: Mapping[str, Any], said: Said = as_argument, now: float = 0.0) -> dict[str, Any]:
    """The fields of what was given; None is what was not."""
    if given.get("max_leases") is not None and given.get("mem") is None:
        raise UsageError(
            f"{said('max_leases')} is for a shared GPU, and {said('mem')} was not given.", "Give both, or neither."
        )
    asked = {name: given[name] for name in FIELDS if given.get(name) is not None}
    fields = changed_fields(asked, said, now)
    if fields.get("devices") == []:
        raise UsageError(f"{said('devices')} is empty.", UNSET)
    return {field: value for field, value in fields.items() if value != [] and (value is not False or field == "pack")}


def changed_fields(given: Mapping[str, Any], said: Said = as_argument, now: float = 0.0) -> dict[str, Any]:
    """As `request_fields`, for a request that exists: None takes back what it had."""
    changed: dict[str, Any] = {}
    for name, (field, read) in FIELDS.items():
        if name in given and given[name] is not None:
            changed[field] = read(given[name], said(name), now)
        elif name in given:
            changed[field] = [] if read is texts else None
    if "at" in given:
        changed["relative"] = str(given["at"]).startswith("in ")
    return changed


def refuse_name(name: object) -> None:
    """`name` was the GPU's model once; a job has a name."""
    if name is not None:
        raise UsageError("A GPU is chosen by its model, not by a name.", "Write model= instead of name=.")


def amount(value: Any, said: str, now: float = 0.0) -> Any:
    """Bytes, from bytes or `6G`; what is no number is told by whoever checks the message."""
    if type(value) in (int, float) and 0 < value < LEAST:
        raise UsageError(f"{said} is {value}, which would be bytes.", f"Write it with its unit, as '{value}G'.")
    return parse_bytes(value) if isinstance(value, str) else value


def seconds(value: Any, said: str, now: float = 0.0) -> float:
    """From seconds or `30m`."""
    if isinstance(value, str):
        return parse_seconds(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LONGEST:
        raise UsageError(f"{said} is {value!r}.", "Give seconds, or text as '30m'.")
    return value


def moment(value: Any, said: str, now: float) -> float:
    """Unix seconds, from them, a datetime, or text as `22:30` or `in 2h`."""
    if isinstance(value, str):
        return parse_moment(value, now)
    if hasattr(value, "timestamp"):
        return float(value.timestamp())
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < float("inf"):
        raise UsageError(f"{said} is {value!r}.", "Give a datetime, Unix seconds, or text as '22:30' or 'in 2h'.")
    return float(value)


def texts(value: Any, said: str, now: float = 0.0) -> list[str]:
    """From `0`, `"0,2"` or `[0, "GPU-..."]`."""
    if not isinstance(value, (int, str)) and not hasattr(value, "__iter__"):
        raise UsageError(f"{said} is {value!r}.", "Give a name, a number, or a list of them.")
    given = [value] if isinstance(value, (int, str)) else list(value)
    parts = [part.strip() for one in given for part in str(one).split(",") if part.strip()]
    if given and not parts:
        raise UsageError(f"{said} is empty.", UNSET)
    return parts


def _as_it_is(value: Any, said: str, now: float) -> Any:
    return value


# argument -> its field on the wire, and how it is read
FIELDS: dict[str, tuple[str, Callable[[Any, str, float], Any]]] = {
    "gpus": ("gpus", _as_it_is),
    "mem": ("memory", amount),
    "model": ("models", texts),
    "devices": ("devices", texts),
    "exclude": ("exclude", texts),
    "min_memory": ("min_memory", amount),
    "max_leases": ("max_leases", _as_it_is),
    "priority": ("priority", _as_it_is),
    "duration": ("duration", seconds),
    "at": ("not_before", moment),
    "pack": ("pack", _as_it_is),
    "beside_outside": ("beside_outside", _as_it_is),
    "mig": ("mig", _as_it_is),
}
