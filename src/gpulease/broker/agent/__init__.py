"""A user's agent: the process that starts, watches and ends that user's jobs."""
