"""Writes docs/reference/cli.md from the parsers themselves, so that it cannot go stale.

python tools/cli_reference.py          write it
python tools/cli_reference.py --check  fail when it is not what would be written
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpulease.cli.install.manifest import EXIT_CODES, helps

TARGET = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"
HEAD = """\
# The command line

Written by `tools/cli_reference.py` from the commands themselves; do not edit.

With no verb, `gpulease` shows the status. `--version` prints the version, `--help` the verbs.

## Exit codes

| code | meaning |
| --- | --- |
"""


def text() -> str:
    parts = [HEAD, *(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())]
    for verb, texts in helps():
        parts.append(f"\n## gpulease {verb}\n")
        parts += [f"\n```text\n{text}\n```\n" for text in texts]
    return "".join(parts)


def main() -> int:
    if "--check" in sys.argv:
        return 0 if TARGET.read_text() == text() else 1
    TARGET.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
