"""Slurm as an engine: the same verbs, answered by Slurm's commands instead of a broker.

`fields`, `rows`, `reasons`, `nodes`, `options`, `script`, `job_selection` and `configuration` are pure: what was asked
becomes arguments of Slurm's commands, and what these print becomes the documents of `messages`. `commands` runs them,
`records` keeps what Slurm forgets, `engine` answers verbs with both. `site` is what a site has
chosen, `doctor` what `doctor` finds there. Not for: scheduling, which is Slurm's.
"""
