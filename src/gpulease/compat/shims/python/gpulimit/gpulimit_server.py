"""`gpulimit_server`: the broker in the foreground, until it is stopped.

One of your own that started by itself is replaced, and nothing that it held is lost. Beside a broker for everybody
there is nothing to start: this waits as long as that one runs.
"""

import os
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

import gpulease_shim

LOOK = 0.2  # seconds between looks at a broker that is not a child


def main() -> int:
    print("start", flush=True)
    try:
        return _serve()
    except gpulease_shim.GpuleaseFailed as failed:
        print("[error]: {}".format(failed))
        return failed.code


def _serve() -> int:
    found = gpulease_shim.status()["broker"]
    if found is not None and found["kind"] != "own":
        _say_ready(found)
        return _stay_beside(found["pid"])
    return _run()


def _run() -> int:
    """The broker as a child, which is ended as this process is; else its exit code."""
    asked: List[int] = []
    child = subprocess.Popen([*gpulease_shim.command(), "broker", "--replace"], stdin=subprocess.DEVNULL)

    def end(number: int, frame: object) -> None:
        asked.append(number)
        child.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    ready = _wait_for(child)
    if ready is not None:
        _say_ready(ready)
    code = child.wait()
    if asked:
        _end_by(asked[0])
    return code


def _say_ready(broker: Dict[str, Any]) -> None:
    print("start gpulimit server.", flush=True)
    print("listening at {}".format(os.path.join(broker["directory"], "socket")), flush=True)


def _wait_for(child: "subprocess.Popen[bytes]") -> Optional[Dict[str, Any]]:
    """The broker, once it answers; None if it ended before."""
    while child.poll() is None:
        broker = gpulease_shim.status()["broker"]
        if broker is not None and broker["pid"] == child.pid:
            return dict(broker)
        time.sleep(LOOK)
    return None


def _stay_beside(pid: int) -> int:
    first = _start_time(pid)
    while first is not None and _start_time(pid) == first:
        time.sleep(LOOK)
    return 0


def _start_time(pid: int) -> Optional[str]:
    """Of a process that lives; another process may get its pid later."""
    try:
        with open("/proc/{}/stat".format(pid)) as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _end_by(number: int) -> None:
    """As a program that does not catch the signal."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    sys.exit(main())
