"""The broker's process: sockets, clocks, children and files. It decides nothing."""
