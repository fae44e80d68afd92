"""The one process of a host that grants. Nobody else does."""
