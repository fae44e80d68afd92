"""Notices by mail, by a web hook or on a terminal, sent by a process of the user."""
