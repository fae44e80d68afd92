"""Notices: what a user is told by mail, by a web hook or on a terminal, from a process of that user."""
