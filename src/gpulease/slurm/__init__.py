"""Slurm as an engine: the same verbs, answered by Slurm's commands instead of a broker.

`fields`, `rows`, `slurm_reasons`, `nodes`, `asking`, `script`, `choosing` and `configuration` are pure: what was asked
becomes arguments of Slurm's commands, and what these print becomes the documents of `messages`. `commands` runs them,
`slurm_records` keeps what Slurm forgets, `slurm_engine` answers verbs with both. `site_settings` is what a site has
chosen, `diagnosis` what `doctor` finds there. Not for: scheduling, which is Slurm's.
"""
