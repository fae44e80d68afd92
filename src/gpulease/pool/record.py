"""Results on disk, each as it comes, so that a second run only does what is missing.

A result's name is made of the function's name and of the arguments, or by `key`. To change the function is not seen:
empty the folder then.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpulease.errors import StateError, UsageError
from gpulease.pool.pickling import Packed, pack

ENDING = ".pickle"


class Record:
    def __init__(self, folder: str | os.PathLike[str], function: str, key: Callable[..., str] | None) -> None:
        self.folder = Path(folder)
        self._function, self._key = function, key
        self._seen: Counter[str] = Counter()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"The folder {str(folder)!r} for results cannot be made: {error.strerror}.") from None
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
        digest = hashlib.sha256(self._function.encode())
        digest.update(packed.payload)
        for buffer in packed.buffers:
            digest.update(buffer)
        return digest.hexdigest()[:24]
