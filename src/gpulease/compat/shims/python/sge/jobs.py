"""Jobs, and the pool of those that are not done."""

from sge import module

Job = module("jobs").Job
JobPool = module("jobs").JobPool
