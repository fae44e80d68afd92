"""What a test needs of the machine. A test is skipped with a reason that says what to install or to permit."""

from __future__ import annotations

import os

import pytest

from support.packages import find, package_of

ONLY_ROOT = "only root can do this"
NAMESPACES = "mounting is not permitted here"


def needs(*programs: str) -> pytest.MarkDecorator:
    reason = lacking(*programs)
    return pytest.mark.skipif(reason is not None, reason=reason or "")


def program(name: str) -> str:
    """Its path; the test is skipped if it is not installed."""
    if reason := lacking(name):
        pytest.skip(reason)
    return str(find(name))


def lacking(*programs: str) -> str | None:
    absent = [name for name in programs if find(name) is None]
    return f"{absent[0]} is not installed (Debian: {package_of(absent[0])})" if absent else None


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason=ONLY_ROOT)
