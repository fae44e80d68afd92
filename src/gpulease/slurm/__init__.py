"""Slurm as an engine: the same verbs, answered by Slurm's commands instead of a broker.

`fields`, `rows`, `reasons`, `nodes`, `asking`, `script` and `choosing` are pure: what was asked becomes arguments of
Slurm's commands, and what these print becomes the documents of `messages`. `commands` runs them, `records` keeps what
Slurm forgets, `engine` answers verbs with both. Not for: scheduling, which is Slurm's alone.
"""
