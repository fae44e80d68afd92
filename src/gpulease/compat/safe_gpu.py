"""safe-gpu's names on leases: `from gpulease.compat import safe_gpu`. The code is in shims/python/safe_gpu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpulease.compat.shim_files import become

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


become(__name__, "safe_gpu/safe_gpu.py")
