"""Jobs, and the pool of jobs that wait for an agent or run on one.

`Job` may be subclassed as the template's document says: a `deploy` of one's own writes the data to the agent's file, a
`collect` of one's own reads the result's file. Without them nothing is written to disk.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpulease.errors import PoolBroken, PoolClosed

if TYPE_CHECKING:
    from gpulease.compat.sge.master import Agent

FOLDERS = ("log", "agent_pool", "job_pool", "result_pool", "data")


def make_folders(base: str) -> None:
    for name in FOLDERS:
        os.makedirs(os.path.join(base, name), exist_ok=True)


def pool_name(base: str, agent: str) -> str:
    """One for each base folder and agent, from wherever it is asked."""
    return f"sge-{hashlib.sha256(os.path.realpath(base).encode()).hexdigest()[:8]}-{agent}"


def agent_file(base: str, agent: str) -> Path:
    """There while the agent lives; empty while it has nothing to do."""
    return Path(base, "agent_pool", f"{agent}.POOL")


def job_file(base: str, agent: str) -> Path:
    return Path(base, "job_pool", f"{agent}.npz")


def result_file(base: str, job: str) -> Path:
    return Path(base, "result_pool", f"{job}.npz")


def agents_in(base: str) -> list[str]:
    """In the order of their GPUs."""
    found = [path.stem for path in Path(base, "agent_pool").glob("*.POOL")]
    return sorted(found, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))


class Loaded(dict[str, Any]):
    """The arrays of a `.npz`, used as `numpy.load` gives it."""

    @property
    def files(self) -> list[str]:
        return list(self)

    def close(self) -> None:
        """Nothing is open."""


def load(path: str | Path, allow_pickle: bool = False) -> Any:
    import numpy

    loaded = numpy.load(path, allow_pickle=allow_pickle)
    if not hasattr(loaded, "files"):
        return loaded  # of a .npy
    with loaded:
        return Loaded(loaded)


def save(path: Path, values: Mapping[str, Any]) -> None:
    """There whole or not at all: somebody may wait for the file."""
    import numpy

    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        numpy.savez(file, **{name: value for name, value in values.items() if value is not None})
    part.rename(path)


def as_saved(data: Any) -> Any:
    """Each value as an array, as it would come out of a `.npz`; what is no dictionary is left as it is."""
    if not isinstance(data, Mapping):
        return data
    import numpy

    return {name: numpy.asarray(value) for name, value in data.items()}


# -------------------------------------------------------------------- jobs


class Job:
    """One call of `expensive_task`; once it is collected, `result` is what that returned."""

    future: Future[Any] | None = None  # while an agent has it, and afterwards
    sge_job_id: str | None = None  # the agent that has it
    result: Any = None
    is_cuda: bool | None = None
    error: BaseException | None = None

    def __init__(self, name: str, data: Any = None, **kwargs: Any) -> None:
        self.name, self.data, self.kwargs = name, data, kwargs

    def deploy(self, sge_job_id: str, base_path: str) -> bool:
        """Write the data where the agent finds them."""
        data = self.data if isinstance(self.data, Mapping) else {"data": self.data}
        save(job_file(base_path, sge_job_id), {**data, "name": self.name})
        self.sge_job_id = sge_job_id
        return True

    def collect(self, base_path: str) -> bool:
        """Whether the result is there: of the agent, or, for a job that was not given to one, as a file."""
        if self.future is not None:
            if not self.future.done():
                return False
            self.result, self.is_cuda = self.future.result()
            return True
        path = result_file(base_path, self.name)
        if not path.exists():
            return False
        self.result = load(path, allow_pickle=True)["result"]
        path.unlink()
        return True


def as_job(task: Any, number: int) -> Any:
    """A task that is no job is the arguments of one call: a dictionary, a tuple, or a single one."""
    return task if hasattr(task, "deploy") and hasattr(task, "collect") else Call(f"job_{number}", task)


class Call(Job):
    """A job whose arguments are given to the function as they are."""


class JobPool:
    def __init__(self, to_distribute: Sequence[Any], **kwargs: Any) -> None:
        self.to_distribute = list(to_distribute)
        self.to_collect: list[Any] = []
        self.base_path: str = kwargs["base_path"]
        self.logger: logging.Logger = kwargs.get("logger") or logging.getLogger("sge.jobs")

    def distribute(self, agent: Agent) -> None:
        if self.to_distribute:
            job = self.to_distribute.pop(0)
            agent.receive(job=job, base_path=self.base_path)
            self.logger.info(f"Assigned job {job.name} to agent {agent.sge_job_id}.")
            self.to_collect.append(job)

    def collect(self) -> int:
        """How many jobs are done, failed ones too. One whose agent is gone is for another agent."""
        done = 0
        for job in list(self.to_collect):
            error = _error_of(job)
            if isinstance(error, (PoolClosed, PoolBroken)):
                self.logger.info(f"Job {job.name} goes to another agent.")
                self.to_distribute.insert(0, job)
            elif error is not None:
                self.logger.error(f"Job {job.name} failed: {type(error).__name__}: {error}")
                job.error = error
                done += 1
            elif job.future.done() and job.collect(self.base_path):
                self.logger.info(f"Collected job result {job.name}.")
                done += 1
            else:
                continue
            self.to_collect.remove(job)
        return done

    def is_finished(self) -> bool:
        return not self.to_distribute and not self.to_collect


def _error_of(job: Any) -> BaseException | None:
    return job.future.exception() if job.future.done() else None
