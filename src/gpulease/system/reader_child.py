"""Reads files whose reading may never end, and names of users. Its parent has the deadline.

A line for each question: a path, or `uid N`. An answer is four bytes of its length, then the bytes: none where nothing
is to be read.
It is started as a file, without the package (reader.py).
"""

from __future__ import annotations

import os
import pwd
import sys

MOST = 4096  # bytes of a file that are read


def answer(question: str) -> bytes:
    try:
        if question.startswith("uid "):
            return pwd.getpwuid(int(question[4:])).pw_name.encode("utf-8", "surrogateescape")
        descriptor = os.open(question, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, KeyError, ValueError, OverflowError):
        return b""
    try:
        return os.read(descriptor, MOST)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def main() -> None:
    os.write(1, b"+")  # it has begun
    for line in sys.stdin.buffer:
        data = answer(os.fsdecode(line.rstrip(b"\n")))
        os.write(1, len(data).to_bytes(4, "big") + data)


if __name__ == "__main__":
    main()
