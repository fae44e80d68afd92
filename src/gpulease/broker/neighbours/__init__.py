"""Other tools that share the same GPUs, each with what it takes to live beside it."""
