"""The process that tells hooks: `on-finish` of jobs that ended, `on-broken` of GPUs that the driver lost.

A hook is a command or a URL of the user who runs the broker. It gets one document at a time, in order
(broker/outbox.py). Its failure is written into the broker's log and touches nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from gpulease.broker.outbox import in_memory
from gpulease.errors import in_words

LONGEST = 60  # seconds that a hook may take for one document


def main() -> int:
    for line in sys.stdin.buffer:
        call = json.loads(line)
        if "dropped" in call:
            _say(f"{call['dropped']} ended jobs were not sent to a hook: there were too many")
            continue
        hook, about = call["hook"], call["about"]
        tell = _post if hook.startswith(("http://", "https://")) else _run
        trouble = tell(hook, json.dumps(about).encode() + b"\n")  # which `while read -r` needs
        if trouble is not None:
            _say(f"the hook {call['name']} failed for {call['subject']}: {trouble}")
    return 0


def _say(text: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=sys.stderr)


def _run(command: str, body: bytes) -> str | None:
    """Why it failed; None when it did not."""
    try:
        with in_memory(os.fsencode(command)) as script:
            words = ["/bin/sh", f"/proc/self/fd/{script.fileno()}"]
            code = subprocess.run(words, input=body, timeout=LONGEST, pass_fds=[script.fileno()]).returncode
    except subprocess.TimeoutExpired:
        return f"it was ended after {LONGEST} s"
    except OSError as trouble:
        return in_words(trouble)
    return f"exit code {code}" if code else None


def _post(url: str, body: bytes) -> str | None:
    from http.client import HTTPException

    from gpulease.notices.channels import post

    try:
        post(url, body, LONGEST)
    except (OSError, ValueError) as trouble:
        return in_words(trouble)
    except HTTPException as trouble:  # its words may have the URL in them
        return type(trouble).__name__
    return None


if __name__ == "__main__":
    sys.exit(main())
