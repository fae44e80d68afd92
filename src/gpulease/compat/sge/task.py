"""What runs in an agent's worker: `expensive_task`, imported once, then called for each job."""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gpulease.compat.sge import jobs
from gpulease.pool.context import worker

AGENT, BASE, VISIBLE = "SGE_AGENT", "SGE_BASE", "SGE_VISIBLE_DEVICES"  # how an agent's process is told of itself
TEMPLATE = {"matrix_a": "A", "matrix_b": "B"}  # entries of a job's data, and the arguments that they are in the example
TIME = "%H:%M:%S"


class AgentState(NamedTuple):
    agent: str
    base: str
    function: Callable[..., Any]


def load() -> AgentState:
    """Once in each worker, before any job."""
    agent, base = os.environ[AGENT], os.environ[BASE]
    _show_devices()
    _log_to(os.path.join(base, "log", f"{agent}.log"))
    from expensive_task import expensive_task  # type: ignore[import-not-found]  # the user's own

    file = jobs.agent_file(base, agent)
    file.write_text("")
    atexit.register(file.unlink, missing_ok=True)
    return AgentState(agent, base, expensive_task)


def _show_devices() -> None:
    """As the session saw them: `gpu_id` counts among them, and the template's functions use `cuda:{gpu_id}`."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    visible = os.environ.get(VISIBLE)
    if visible is None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible


def _log_to(path: str) -> None:
    """Into the agent's file, and where its prints go."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s: %(message)s",
        datefmt=TIME,
        handlers=[logging.FileHandler(path), logging.StreamHandler(sys.stdout)],
    )


def run_job(name: str, data: Any, deployed: bool, keep: bool, shared_data_path: str | None) -> tuple[Any, bool | None]:
    """`deployed`: the data are in the agent's file. `keep`: the result goes into a file too."""
    state: AgentState = worker().state
    file = jobs.agent_file(state.base, state.agent)
    file.write_text(shared_data_path or "busy")
    try:
        logging.info(f"Receiving job {name}...")
        if deployed:
            data = _take_deployed(state)
        result, is_cuda = _apart(_call(state, data))
        logging.info(f"Agent {state.agent} completed task - (GPU:{is_cuda}).")
        if keep:
            values = data if isinstance(data, Mapping) else {"data": data}
            jobs.save(jobs.result_file(state.base, name), {**values, "name": name, "result": result})
        return result, is_cuda
    finally:
        file.write_text("")


def _take_deployed(state: AgentState) -> dict[str, Any]:
    file = jobs.job_file(state.base, state.agent)
    loaded = jobs.load(file, allow_pickle=True)
    file.unlink()
    return {name: value for name, value in loaded.items() if name != "name"}


def _call(state: AgentState, data: Any) -> Any:
    around = {"shared_data": worker().shared["shared_data"], "gpu_id": int(state.agent)}
    if isinstance(data, tuple):
        return state.function(*data, **accepted(state.function, around))
    if not isinstance(data, Mapping):
        return state.function(*([] if data is None else [data]), **accepted(state.function, around))
    return state.function(**renamed(state.function, data), **accepted(state.function, around))


def accepted(function: Callable[..., Any], around: Mapping[str, Any]) -> dict[str, Any]:
    """What the function takes of what is offered to each."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(around)
    return {name: value for name, value in around.items() if name in parameters}


def renamed(function: Callable[..., Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Entries are arguments by their names; the example's matrices are `A` and `B` where the function has these."""
    known = inspect.signature(function).parameters
    named = {name: TEMPLATE.get(name, name) for name in data}
    return {new if name not in known and new in known else name: data[name] for name, new in named.items()}


def _apart(returned: Any) -> tuple[Any, bool | None]:
    """(the result, whether it was computed on a GPU, where the function tells)."""
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], bool):
        return returned
    return returned, None
