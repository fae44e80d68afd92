"""Gives jobs to agents, one at a time each, as agents come, and collects the results."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from gpulease.compat.sge import jobs
from gpulease.compat.sge.jobs import Call, Job, JobPool, as_job
from gpulease.compat.sge.task import run_job
from gpulease.errors import NotFound
from gpulease.pool import places
from gpulease.pool.executor import Pool
from gpulease.pool.plan import SharedData


def load_shared(path: str | None) -> SharedData:
    """The shared file, read once, however many agents there are."""
    return SharedData({"shared_data": None if path is None else jobs.load(path)})


class Agent:
    def __init__(self, **kwargs: Any) -> None:
        """`sge_job_id`, `base_path` and `shared_data_path`; `shared` is what was loaded from there. Raises NotFound."""
        self.kwargs = kwargs
        self.sge_job_id: str = str(kwargs["sge_job_id"])
        self.base_path: str = kwargs["base_path"]
        self.shared_data_path: str | None = kwargs.get("shared_data_path")
        self._pool_name = jobs.pool_name(self.base_path, self.sge_job_id)
        self._pool = Pool.connect(self._pool_name, shared=kwargs.get("shared") or load_shared(self.shared_data_path))
        self._future: Future[Any] | None = None

    def receive(self, job: Any, base_path: str | None = None) -> None:
        """Only what a `deploy` or `collect` of the user's own asks for goes through files."""
        base = self.base_path if base_path is None else base_path
        deployed = _is_own(job, "deploy") and job.deploy(self.sge_job_id, base) is not False
        data = None if deployed else (job.data if isinstance(job, Call) else jobs.as_saved(job.data))
        job.sge_job_id = self.sge_job_id
        options: dict[str, Any] = {
            "deployed": deployed,
            "keep": _is_own(job, "collect"),
            "shared_data_path": self.shared_data_path,
        }
        job.future = self._future = self._pool.submit(run_job, job.name, data, **options)

    def is_available(self) -> bool:
        return bool(self._pool.gpus) and (self._future is None or self._future.done())

    def is_alive(self) -> bool:
        try:
            places.connect(self._pool_name).close()
        except NotFound:
            return False
        return True

    def close(self, wait: bool = True) -> None:
        """The agent stays. `wait`: until what it was given is done."""
        if wait and self.is_alive():
            self._pool.shutdown()
        else:
            self._pool.terminate()


def _is_own(job: Any, method: str) -> bool:
    return getattr(type(job), method) is not getattr(Job, method)


POLL = 0.1  # seconds between looks for new agents; results are told


class Master:
    def __init__(
        self,
        base_path: str,
        max_jobs: int | None = None,
        shared_data_path: str | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        if not os.path.isdir(os.path.join(base_path, "agent_pool")):
            raise FileNotFoundError(f"There is no folder {os.path.join(base_path, 'agent_pool')}: start agents there.")
        self.base_path, self.shared_data_path, self.max_jobs = base_path, shared_data_path, max_jobs
        self.logger = logger or logging.getLogger("sge.master")  # as the template's
        self.count_jobs = 0
        self.job_pool: JobPool | None = None
        self.known_agents: dict[str, Agent] = {}
        self.available_agents: list[Agent] = []
        self._changed = threading.Event()

    def run(self, tasks: Sequence[Any]) -> list[Any]:
        """The results, in the order of the tasks. Raises the first error of a job, once all others are done."""
        jobs = [as_job(task, number) for number, task in enumerate(tasks)]
        self.job_pool = pool = JobPool(jobs, base_path=self.base_path, logger=self.logger)
        shared = load_shared(self.shared_data_path)
        waited, self.known_agents = False, {}
        try:
            while not self._is_finished(pool):
                self._changed.clear()
                self._check_agents(shared)
                self._assign(pool)
                self.count_jobs += pool.collect()
                if not self.known_agents and not waited:
                    waited = True
                    self.logger.info(f"No agent in {self.base_path} yet; waiting for one.")
                if not self._is_finished(pool):
                    self._changed.wait(POLL)
        finally:
            self._close(wait=pool.is_finished())
        for job in jobs:
            if getattr(job, "error", None) is not None:
                raise job.error
        return [getattr(job, "result", None) for job in jobs]

    def _check_agents(self, shared: Any) -> None:
        """Those whose file is there and whose pool answers."""
        there = jobs.agents_in(self.base_path)
        for name in [*self.known_agents, *there]:
            agent = self.known_agents.get(name)
            if agent is None:
                self._meet(name, shared)
            elif name not in there or not (agent.is_available() or agent.is_alive()):
                self.logger.info(f"Dead agent id = {name} found!")
                self.known_agents.pop(name).close(wait=False)
        self.available_agents = [agent for agent in self.known_agents.values() if agent.is_available()]

    def _meet(self, name: str, shared: Any) -> None:
        try:
            self.known_agents[name] = Agent(
                sge_job_id=name, base_path=self.base_path, shared_data_path=self.shared_data_path, shared=shared
            )
            self.logger.info(f"New agent id = {name} found!")
        except NotFound:  # it was killed, and left its file
            jobs.agent_file(self.base_path, name).unlink(missing_ok=True)

    def _assign(self, pool: JobPool) -> None:
        for agent in self.available_agents:
            if pool.to_distribute:
                pool.distribute(agent)
                pool.to_collect[-1].future.add_done_callback(lambda _: self._changed.set())

    def _is_finished(self, pool: JobPool) -> bool:
        return pool.is_finished() or (self.max_jobs is not None and self.count_jobs >= self.max_jobs)

    def _close(self, wait: bool) -> None:
        """The agents stay known, for who reads them after a run; the next run meets them anew."""
        for agent in self.known_agents.values():
            agent.close(wait)
