"""Lets a module of gpulease.compat be a file of shims/python, which need not be on the path."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from gpulease.compat.shim_files import SHIMS, own_command

SHARED = "gpulease_shim"


def become(name: str, file: str) -> None:
    """The module `name` is what stands in `file`, a path below shims/python."""
    if SHARED not in sys.modules:
        shared = _load(SHARED, SHIMS / "python" / f"{SHARED}.py")
        shared.COMMAND = own_command()  # type: ignore[attr-defined]
    _load(name, SHIMS / "python" / file)


def _load(name: str, path: Path) -> ModuleType:
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
