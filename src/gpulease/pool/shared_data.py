"""What a program shares with the warm workers of named pools: packed once, however many pools it is for."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from typing import Any

from gpulease.pool.pickling import to_body
from gpulease.pool.plan import pack_named


class SharedData:
    """As bytes, and memory that all workers map; it is given back with the last pool that uses it."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        packed = pack_named(values)
        self.body, self.memory = (b"", None) if packed is None else to_body(packed)
        if self.memory is not None:
            weakref.finalize(self, os.close, self.memory)
