"""Agents: each a named pool of one worker on one GPU, in the foreground or in the background."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from gpulease.api.status import status
from gpulease.compat.sge import jobs
from gpulease.compat.sge.task import AGENT, BASE, VISIBLE
from gpulease.errors import GpuleaseError, NotFound, UsageError
from gpulease.pool import places
from gpulease.pool.daemon import serve
from gpulease.pool.places import checked_options, start, wait_for_workers

INIT = "gpulease.compat.sge.task:load"


def session(words: list[str]) -> int:
    """`gpu_session.py GPU_ID BASE`: one agent, until it is interrupted."""
    agent, base = _read(words, "gpu_session.py GPU_ID BASE_FOLDER")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s:  %(message)s")
    sys.path.insert(0, os.getcwd())  # where expensive_task.py is
    name, request = _prepare(agent, base, _seen(agent))
    if os.path.exists(places.socket_path(name)) and places.listens(name):
        raise UsageError(f"Agent {agent} of {base} runs already.", f"gpulease pool stop {name}")
    try:
        serve(checked_options(name, init=INIT, **request))
    finally:
        jobs.agent_file(base, str(agent)).unlink(missing_ok=True)
    return 0


def start_all(words: list[str]) -> int:
    """`start_agents.sh N BASE`: agents 0 to N-1 in the background."""
    count, base = _read(words, "start_agents.sh NUMBER_OF_AGENTS BASE_FOLDER")
    os.environ.pop("PYTHONSAFEPATH", None)  # it was for this command alone
    seen = _seen(count - 1)  # all or none: who is refused need not look for what was started
    started = {}
    for agent in range(count):
        name, request = _prepare(agent, base, seen)
        try:
            start(name, init=INIT, **request)
        except UsageError:
            if not places.listens(name):
                raise
            print(f"Agent {agent} runs already.")
            continue
        started[agent] = name
    for agent, name in started.items():
        (state,) = wait_for_workers(name)
        print(f"Started agent {agent} as pool {name}" + ("; it waits for its GPU" if state == "waiting" else ""))
    return 0


def _read(words: list[str], usage: str) -> tuple[int, str]:
    if len(words) != 2 or not words[0].isdecimal():
        raise UsageError("Two words are needed: a number and a folder.", f"Usage: {usage}")
    return int(words[0]), words[1]


def _seen(last: int) -> list[Any]:
    """The GPUs that can be seen here, in the order of the agents; `last` must have one."""
    seen: list[Any] = status(only_visible=True)["devices"]
    if last >= len(seen):
        raise NotFound(f"There is no GPU {last}: {len(seen)} can be seen here.", "See `gpulease status`.")
    return seen


def _prepare(agent: int, base: str, seen: list[Any]) -> tuple[str, dict[str, Any]]:
    """The folders, and the environment that the agent's worker reads; the pool's name and the lease's request."""
    jobs.make_folders(base)
    os.environ |= {AGENT: str(agent), BASE: os.path.abspath(base)}
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        os.environ[VISIBLE] = os.environ["CUDA_VISIBLE_DEVICES"]
    return jobs.pool_name(base, str(agent)), {"devices": seen[agent]["uuid"], "note": f"sge agent {agent}"}


def main(action: Callable[[list[str]], int]) -> int:
    try:
        return action(sys.argv[1:])
    except GpuleaseError as error:
        print(f"gpulease: {error.what}\n{error.next_step}", file=sys.stderr)
        return 1 if isinstance(error, UsageError) else error.exit_code  # the template's own code
