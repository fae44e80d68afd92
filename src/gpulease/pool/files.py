"""What `gpulease pool start` names in words: a function to import, files to share."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable
from typing import Any

from gpulease.errors import UsageError


def find_function(text: str) -> Callable[..., Any]:
    """The function that `module:function` names."""
    module, name = check_function_name(text)
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UsageError(f"The module {module!r} has no function {name!r}.", "Write it as module:function.")
    return found  # type: ignore[no-any-return]


def check_function_name(text: str) -> tuple[str, str]:
    module, _, name = text.partition(":")
    if not module or not name:
        raise UsageError(f"{text[:80]!r} names no function.", "Write it as module:function.")
    return module, name


def load_files(paths: Iterable[str]) -> dict[str, Any]:
    """Arrays by name. A `.npz` gives its own names; a `.npy` and any other file are named after the file."""
    shared: dict[str, Any] = {}
    for path in paths:
        for name, value in _load(path).items():
            if name in shared:
                raise UsageError(f"Two shared files have an entry {name!r}.", "Rename one of them.")
            shared[name] = value
    return shared


def _load(path: str) -> dict[str, Any]:
    stem, ending = os.path.splitext(os.path.basename(path))
    try:
        if ending not in (".npz", ".npy"):
            with open(path, "rb") as file:
                return {stem: file.read()}
        import numpy

        loaded = numpy.load(path, allow_pickle=False)
        return {name: loaded[name] for name in loaded.files} if ending == ".npz" else {stem: loaded}
    except ImportError:
        raise UsageError(f"To share {path!r}, NumPy is needed.", "Install it: pip install numpy.") from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"The shared file {path!r} cannot be read: {error}.", "Give a .npz, .npy or plain file."
        ) from None
