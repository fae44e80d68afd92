"""gpuselect's names on leases: `from gpulease.compat.gpuselect import gpuselect`. The code is in shims/python.

The module can be called as well, so that `from gpulease.compat import gpuselect` serves for the function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpulease.compat.shim_files import become

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


class CallableModule(ModuleType):
    def __call__(self, *values: Any, **options: Any) -> str:
        return str(self.gpuselect(*values, **options))


become(__name__, "gpuselect/nvmlgpuselect.py")
sys.modules[__name__].__class__ = CallableModule
