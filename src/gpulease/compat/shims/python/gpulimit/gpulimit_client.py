"""`gpulimit` and `gpulimitc`: exit code 0 whatever was typed, as gpulimit has it; gpulease's own for its errors."""

import sys
from typing import List, Optional

import gpulease_shim

from gpulimit.commands import Refused, answer


def main(words: Optional[List[str]] = None) -> int:
    given = sys.argv[1:] if words is None else words
    if not given:
        print("use `{} help` to show help message.".format(sys.argv[0]))
        return 0
    try:
        print(answer(given))
        return 0
    except Refused as refused:
        print(refused)
        return 0
    except gpulease_shim.GpuleaseFailed as failed:
        print("[error]: {}".format(failed))
        return failed.code


if __name__ == "__main__":
    sys.exit(main())
