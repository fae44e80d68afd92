"""The process that sends a user's notices: a child of the user's agent, which waits for it with nothing.

It gets the notices on its standard input, a line each, and reads the address from the user's own file. It tries a few
times, ends within two minutes whatever the network does, and leaves a word on how it went beside the address.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time

from gpulease.errors import GpuleaseError
from gpulease.notices.address import NoticeAddress, read, write_last
from gpulease.notices.channels import Undelivered, deliver
from gpulease.notices.words import Composed, compose

PAUSES = (3.0, 15.0)  # seconds before the second and the third try
LONGEST = 90  # seconds for all tries
BACKSTOP = 120  # seconds after which the process is gone, whatever hangs in it


class _Late(BaseException):
    """Not an Exception: no channel may take it for a trouble of its own."""


def main() -> int:
    _end_in_time()
    orders = [json.loads(line) for line in sys.stdin.buffer]
    notices = [order["notice"] for order in orders if "notice" in order]
    path = next(order["file"] for order in reversed(orders) if "file" in order)
    message = compose(notices, sum(order.get("dropped", 0) for order in orders))
    write_last(path, message.number, send(path, message))
    return 0


def send(path: str, message: Composed) -> str | None:
    """What is wrong, if it could not be sent."""
    try:
        _insist(read(path), message)
    except Undelivered as trouble:
        return trouble.why
    except _Late:
        return f"it took longer than {LONGEST} s"
    except GpuleaseError as trouble:
        return trouble.what[:1].lower() + trouble.what[1:].rstrip(".")
    except Exception as trouble:  # its words may have the address in them
        return f"it failed with {type(trouble).__name__}"
    return None


def _insist(address: NoticeAddress, message: Composed) -> None:
    for pause in PAUSES:
        try:
            return deliver(address, message)
        except Undelivered as trouble:
            if not trouble.temporary:
                raise
        time.sleep(pause)
    return deliver(address, message)


def _end_in_time() -> None:
    def late(number: int, frame: object) -> None:
        raise _Late

    signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    null = open(os.devnull, "w")  # noqa: SIM115  # for as long as this process is
    os.dup2(null.fileno(), 2)  # libraries may warn of an address, and this leads into the broker's log
    faulthandler.dump_traceback_later(BACKSTOP, exit=True, file=null)


if __name__ == "__main__":
    sys.exit(main())
