"""Starts the process of a named pool, and waits until its workers are there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from gpulease.errors import NotFound, PoolBroken, PoolClosed, by_code
from gpulease.pool import places
from gpulease.pool.plan import check_devices, check_function_name, make_plan

POLL = 0.05  # seconds between looks at a pool that starts
GRACE = 1.0  # seconds for workers in the line: a GPU that was just given back is theirs in a moment
PLANNED = ("gpus", "gpus_per_worker", "request", "max_items")
SETTLED = ("ready", "waiting", "failed")


def start(pool: str, **options: Any) -> None:
    """Returns when its process is there; workers may still start. Raises UsageError where one has that name."""
    path = places.socket_path(pool)
    places.prepare_folder()
    if os.path.exists(path) and places.listens(pool):
        raise places.already_running(pool)
    _launch(checked_options(pool, **options))


def checked_options(
    pool: str,
    gpus: int | str = 1,
    gpus_per_worker: int = 1,
    init: str | None = None,  # as module:function
    shared: tuple[str, ...] = (),  # files
    max_items: int | None = None,
    **request: Any,
) -> dict[str, Any]:
    """What the process of a pool is told. Raises NotEnoughDevices where it can never be had here."""
    if init is not None:
        check_function_name(init)
    request["note"] = request.get("note") or f"pool {pool}"
    options = {
        "name": pool,
        "gpus": gpus,
        "gpus_per_worker": gpus_per_worker,
        "init": init,
        "shared": [os.path.abspath(file) for file in shared],
        "max_items": max_items,
        "request": request,
    }
    check_devices(make_plan(**{part: options[part] for part in PLANNED}))  # type: ignore[arg-type]
    return options


def _launch(options: dict[str, Any]) -> None:
    place = os.getcwd()
    path = os.environ.get("PYTHONPATH")
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "gpulease.pool.daemon"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{place}:{path}" if path else place},
        start_new_session=True,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps(options) + "\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline() or '{"error": ["pool", "The pool did not start.", null]}')
    if "error" in answer:
        code, what, next_step = answer["error"]
        raise by_code(code, what, next_step, {})


def wait_for_workers(name: str) -> list[str]:
    """The states of all, once each is ready, waits in the line or has failed. Raises PoolBroken when none can work."""
    until: float | None = None
    while True:
        try:
            told = places.ask(name, "status")
        except (NotFound, PoolClosed):
            raise _broken(name) from None
        states = [worker["state"] for worker in told["workers"]]
        if states and all(state in SETTLED for state in states):
            until = until or time.monotonic() + GRACE
            late = time.monotonic() > until
            if set(states) != {"failed"} and (late or "waiting" not in states):
                return states
            if late and "waiting" not in states:  # it ends by itself, and before that its log says why
                raise _broken(name)
        time.sleep(POLL)


def _broken(name: str) -> PoolBroken:
    return PoolBroken(f"The pool {name!r} ended at once: {_last_trouble(name)}", f"See `gpulease pool log {name}`.")


def _last_trouble(name: str) -> str:
    with open(places.path_of(name, "log"), errors="replace") as file:
        ends = [line for line in file if f"pool {name} ends: " in line]
    return ends[-1].partition(" ends: ")[2].strip() if ends else "its log says why."
