"""Results on disk, each as it comes, so that a second run only does what is missing.

A result's name is made of the function and of the arguments, or by `key`. That a function which can be imported was
changed is not seen: empty the folder then.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpulease.errors import StateError, UsageError
from gpulease.pool.naming import Unnameable, digest, pickled_digest
from gpulease.pool.pickling import Packed, pack

ENDING = ".pickle"


class Record:
    def __init__(
        self, folder: str | os.PathLike[str], function: Callable[..., Any], key: Callable[..., str] | None
    ) -> None:
        self.folder = make_folder(folder)
        self._key = key
        self._function = b"" if key is not None else _function_digest(function)
        self._seen: Counter[str] = Counter()
        self._warned = False
        self._there = {entry.name for entry in os.scandir(self.folder) if entry.name.endswith(ENDING)}

    def name(self, arguments: tuple[Any, ...], packed: Packed) -> str:
        """The same for the same arguments in every run; a number tells equal ones apart."""
        stem = self._given(arguments) if self._key else self._digest(arguments, packed)
        self._seen[stem] += 1
        repeated = self._seen[stem] - 1
        return f"{stem}-{repeated}{ENDING}" if repeated else f"{stem}{ENDING}"

    def has(self, name: str) -> bool:
        return name in self._there

    def read(self, name: str) -> Any:
        try:
            with open(self.folder / name, "rb") as file:
                return pickle.load(file)
        except (OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError) as error:
            raise StateError(
                f"The result {name!r} cannot be read: {type(error).__name__}: {error}.",
                "Remove that file and run again.",
            ) from None

    def write(self, name: str, value: Any) -> None:
        """Whole or not at all: under another name first."""
        packed = pack(value, "The result")
        partial = self.folder / f".{name}.{os.getpid()}"
        data = packed.payload if not packed.buffers else pickle.dumps(value, 5)
        try:
            partial.write_bytes(data)
            os.replace(partial, self.folder / name)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise StateError(f"A result cannot be written to {str(self.folder)!r}: {error.strerror}.") from None

    def _given(self, arguments: tuple[Any, ...]) -> str:
        assert self._key is not None
        text = self._key(*arguments)
        if not isinstance(text, str) or not text:
            raise UsageError(f"key gave {text!r} for an item.", "Let it return a text that names the item.")
        clean = re.sub(r"[^A-Za-z0-9._=-]", "_", text)[:100].lstrip(".") or "_"
        return clean if clean == text else f"{clean}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def _digest(self, arguments: tuple[Any, ...], packed: Packed) -> str:
        try:
            named = digest(arguments)
        except Unnameable as error:
            self._warn(error)
            named = pickled_digest(packed.payload, packed.buffers)
        return hashlib.sha256(self._function + named).hexdigest()[:24]

    def _warn(self, error: Unnameable) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"An item may not be found again by the next run: it holds {error}. "
                "Name the items yourself with key=, as in key=lambda item: item.name.",
                stacklevel=2,
            )


def make_folder(folder: str | os.PathLike[str]) -> Path:
    try:
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
    except TypeError:
        raise UsageError(f"results is {folder!r}.", "Give the path of a folder.") from None
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{str(folder)!r} for results is not a folder.", "Give a folder, or a new path.") from None
    except OSError as error:
        raise StateError(f"The folder {str(folder)!r} for results cannot be made: {error.strerror}.") from None
    return path


def _function_digest(function: Callable[..., Any]) -> bytes:
    try:
        return digest(function)
    except Unnameable as error:
        raise UsageError(
            f"Results of this function would not be found again: it holds {error}.",
            "Name the items yourself with key=, as in key=lambda item: item.name.",
        ) from None
