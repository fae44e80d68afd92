"""This machine: processes, executing commands, GPU probes, file systems, and where brokers live."""
