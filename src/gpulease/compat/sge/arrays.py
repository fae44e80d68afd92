"""What a `.npz` makes of data on its way to an agent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Loaded(dict[str, Any]):
    """The arrays of a `.npz`, used as `numpy.load` gives it."""

    @property
    def files(self) -> list[str]:
        return list(self)

    def close(self) -> None:
        """Nothing is open."""


def load(path: str | Path, allow_pickle: bool = False) -> Any:
    import numpy

    loaded = numpy.load(path, allow_pickle=allow_pickle)
    if not hasattr(loaded, "files"):
        return loaded  # of a .npy
    with loaded:
        return Loaded(loaded)


def save(path: Path, values: Mapping[str, Any]) -> None:
    """There whole or not at all: somebody may wait for the file."""
    import numpy

    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        numpy.savez(file, **{name: value for name, value in values.items() if value is not None})
    part.rename(path)


def as_saved(data: Any) -> Any:
    """Each value as an array, as it would come out of a `.npz`; what is no dictionary is left as it is."""
    if not isinstance(data, Mapping):
        return data
    import numpy

    return {name: numpy.asarray(value) for name, value in data.items()}
