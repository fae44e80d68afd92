"""The command line: finds the verb, reads its options, and does it here or on another host."""
