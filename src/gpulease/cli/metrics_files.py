"""Files for other programs: one for Prometheus' textfile collector, one a GPU for dcgm-exporter. Always whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

from gpulease.errors import UsageError, in_words


def write_whole(path: str, text: str) -> None:
    """By another name beside it, which no collector reads, and then renamed."""
    folder, name = os.path.split(os.path.abspath(path))
    try:
        made, other = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        try:
            with open(made, "w") as file:
                file.write(text)
                os.fchmod(file.fileno(), 0o644)
            os.replace(other, path)
        except BaseException:
            os.unlink(other)
            raise
    except OSError as error:
        raise UsageError(
            f"{path!r} cannot be written: {in_words(error)}.", "Give a path in a folder of yours."
        ) from None


def mapping(document: Mapping[str, Any]) -> dict[str, str]:
    """For each GPU, by index, the leases on it, one a line. Without MIG instances, which have other numbers there."""
    whole = [row for row in document.get("devices", ()) if row["instance"] is None]
    return {str(row["index"]): "".join(f"{id}\n" for id in row["leases"]) for row in whole}


def write_mapping(folder: str, document: Mapping[str, Any]) -> None:
    """A GPU without a lease has no file."""
    for index, text in mapping(document).items():
        path = os.path.join(folder, index)
        if text:
            if _content(path) != text:
                write_whole(path, text)
        elif os.path.lexists(path):
            _remove(path)


def _content(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read(10_000)
    except (OSError, UnicodeDecodeError):
        return None


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        raise UsageError(f"{path!r} cannot be removed: {in_words(error)}.") from None
