"""PURE: whether a request wants whole GPUs or MIG instances.

A CUDA process sees one MIG instance at the most, so several devices are never instances unless somebody asked for
these: by `--mig`, by the name of a profile, or by naming them. For one device an instance serves where no whole GPU
does.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeVar

    Any_ = TypeVar("Any_")

WHOLE, ONE, INSTANCES, NAMED = "whole", "one", "instances", "named"


def kind_wanted(gpus: int, named: bool, models: Iterable[str], mig: bool) -> str:
    """`named`: the devices were, so they are meant whatever they are."""
    if mig:
        return INSTANCES
    if named or any(map(is_profile, models)):
        return NAMED
    return ONE if gpus == 1 else WHOLE


def is_profile(model: str) -> bool:
    """Whether it names a kind of MIG instance: `MIG`, `1g.10gb`, `3g`."""
    text = model.casefold()
    return "mig" in text or any(part[:1].isdigit() and part.partition(".")[0].endswith("g") for part in text.split())


def of_kind(kind: str, devices: Sequence[Any_], is_instance: Callable[[Any_], bool]) -> list[Any_]:
    """Of devices that match in all else, those of the kind that is wanted."""
    instances = [device for device in devices if is_instance(device)]
    if kind == NAMED or not (instances or kind == INSTANCES):
        return list(devices)
    whole = [device for device in devices if not is_instance(device)]
    return instances if kind == INSTANCES or (kind == ONE and not whole) else whole
