"""`gpulease top`: the GPUs, who holds them, who waits and the jobs, on a full screen that follows what happens.

`entries`, `gpu_rows`, `host_lines` and `layout` are pure: what is known becomes lines of styled text. `view` is what
keys change. `live_data` asks the broker, `output_lines` reads a log, `display` is the terminal, and `screen` the loop
around them. Who may do what is decided by the broker alone.
"""
