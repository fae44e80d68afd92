"""The names of older tools on leases: `from gpulease.compat import safe_gpu`, `gpuselect`, `sge`.

`shims/` has the files that `gpulease shims DIR` writes. The modules here are the same files, so that each tool has
one implementation.
"""
