"""`on-finish`: a command or a URL that hears of each job that ended. Its failure never touches the job."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

LONGEST = 60  # seconds that a hook may take


def run(hook: str, job: dict[str, Any], log: Callable[[str], None]) -> None:
    """Start it in the background, with the job as JSON on its input."""
    hidden = {name: value for name, value in job.items() if name not in ("environment", "history")}
    words = [sys.executable, "-m", "gpulease.broker.hooks", hook]
    try:
        child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, cwd="/"
        )
        assert child.stdin is not None
        child.stdin.write(json.dumps(hidden).encode())
        child.stdin.close()
    except OSError as error:
        log(f"the hook on-finish could not be started: {error}")


def main() -> int:
    hook, body = sys.argv[1], sys.stdin.buffer.read()
    if hook.startswith(("http://", "https://")):
        return _post(hook, body)
    try:
        return subprocess.run(["/bin/sh", "-c", hook], input=body, timeout=LONGEST).returncode
    except subprocess.TimeoutExpired:
        print(f"the hook on-finish took longer than {LONGEST} s", file=sys.stderr)
        return 1


def _post(url: str, body: bytes) -> int:
    import urllib.request

    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=LONGEST):
            return 0
    except OSError as error:
        print(f"the hook on-finish failed: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
