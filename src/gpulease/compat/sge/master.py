"""Gives jobs to agents, one at a time each, as agents come, and collects the results."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import Any

from gpulease.compat.sge import folders
from gpulease.compat.sge.agent import Agent, load_shared
from gpulease.compat.sge.jobs import JobPool, as_job
from gpulease.errors import NotFound

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
        there = folders.agents(self.base_path)
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
            folders.agent_file(self.base_path, name).unlink(missing_ok=True)

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
