"""One file for each verb: its options and what it prints."""
