"""PURE: what the broker decides: events in, instructions out."""
