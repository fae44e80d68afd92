"""Acknowledged changes survive: leases, the queue, exclusions, parameters and events on disk."""
