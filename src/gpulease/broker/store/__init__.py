"""What is acknowledged survives: leases, the line, exclusions, parameters and events on disk."""
