"""Writes docs/reference/cli.md from the parsers themselves, so that it cannot go stale.

python tools/cli_reference.py          write it
python tools/cli_reference.py --check  fail when it is not what would be written
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, _SubParsersAction
from pathlib import Path

TARGET = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"
HEAD = """\
# The command line

Written by `tools/cli_reference.py` from the commands themselves; do not edit.

With no verb, `gpulease` shows the status. `--version` prints the version, `--help` the verbs.

## Exit codes

| code | meaning |
| --- | --- |
| 0 | done |
| N | the command's own code where gpulease runs one (128+n for a signal) |
| 1 | the thing asked for failed or does not exist |
| 2 | wrong usage |
| 69 | no broker or no driver |
| 75 | not granted in time |
| 77 | not permitted |
"""


def _actions_of(parser: ArgumentParser) -> list[ArgumentParser]:
    """The parsers behind `gpulease VERB ACTION`."""
    groups = [action.choices for action in parser._actions if isinstance(action, _SubParsersAction)]
    return [inner for group in groups for inner in group.values()]


def text() -> str:
    os.environ["COLUMNS"] = "80"
    from gpulease.cli.argument_parser import make_parser
    from gpulease.cli.main import VERBS

    parts = [HEAD]
    for verb in VERBS:
        parser = make_parser(verb)
        parts.append(f"\n## gpulease {verb}\n\n```text\n{parser.format_help().rstrip()}\n```\n")
        parts += [f"\n```text\n{inner.format_help().rstrip()}\n```\n" for inner in _actions_of(parser)]
    return "".join(parts)


def main() -> int:
    if "--check" in sys.argv:
        return 0 if TARGET.read_text() == text() else 1
    TARGET.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
