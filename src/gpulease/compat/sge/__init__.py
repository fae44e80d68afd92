"""sge-template's classes on pools: `from gpulease.compat.sge import Master, Job`, or its own `sge.master`, `sge.jobs`.

An agent is a named pool of one worker (`jobs.pool_name`), which holds the lease of its GPU (`sessions`). `master`
finds agents by the files in `agent_pool/` and gives each one job at a time; `task` is what runs in the worker. See
`gpulease help from-sge-template`.
"""

from gpulease.compat.sge.jobs import Job, JobPool
from gpulease.compat.sge.master import Agent, Master

__all__ = ["Agent", "Job", "JobPool", "Master"]
