"""Reaching what answers: the broker of this machine, or an engine in its place."""
