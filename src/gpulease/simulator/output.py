"""Printing what others chose, such as the name of a card, on any terminal."""

from __future__ import annotations

import io
import sys


def print_anything() -> None:
    """From here on a letter that stdout cannot show is a question mark, and no error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def printable(text: str) -> str:
    """Without control characters, which would drive the terminal instead of being shown by it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
