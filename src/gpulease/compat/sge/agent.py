"""One agent as the master sees it: a connection with its pool."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from gpulease.compat.sge import folders, jobs
from gpulease.compat.sge.jobs import Call, Job
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
        self._pool_name = folders.pool_name(self.base_path, self.sge_job_id)
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
