"""Warm Python workers, each holding a lease, behind the interface of `concurrent.futures`.

How work flows: `executor` makes an item of a call (`feed`, of a map) and hands it to `engine`, which gives it to a
worker's `link`, as far as its `window` has room; the worker (`worker`, `session`) runs it and sends the result back as
a frame, with large buffers in `memory`. `group` keeps the workers alive, and `daemon` between
programs; `sources` connects an engine with them.
"""
