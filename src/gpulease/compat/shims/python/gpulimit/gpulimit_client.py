"""`gpulimit` and `gpulimitc`: exit code 0 whatever was typed, as gpulimit has it; gpulease's own for its errors."""

import sys
from typing import List, Optional

import gpulease_shim

from gpulimit.commands import Refused, answer


def _say(text: str) -> None:
    """Also where the locale knows no Chinese: Python 3.6 with LC_ALL=C ends with an error there."""
    try:
        text.encode(sys.stdout.encoding or "ascii", sys.stdout.errors or "strict")
    except UnicodeEncodeError:
        sys.stdout.flush()
        sys.stdout.buffer.write((text + "\n").encode("utf-8", "replace"))
        sys.stdout.flush()
    else:
        print(text)


def main(words: Optional[List[str]] = None) -> int:
    given = sys.argv[1:] if words is None else words
    if not given:
        print("use `{} help` to show help message.".format(sys.argv[0]))
        return 0
    try:
        _say(answer(given))
        return 0
    except Refused as refused:
        _say(str(refused))
        return 0
    except gpulease_shim.GpuleaseFailed as failed:
        _say("[error]: {}".format(failed))
        return failed.code


if __name__ == "__main__":
    sys.exit(main())
