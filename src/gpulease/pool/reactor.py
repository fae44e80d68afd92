"""One thread that waits for everything: descriptors, the clock, and calls from other threads.

An event loop of `asyncio`, for plain functions: an action that fails, or exits, must not leave everybody else waiting.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable

Action = Callable[[], object]


class Reactor:
    """Actions run in its thread, one after another, so that they need no lock among themselves."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def join(self) -> None:
        """Wait until it has returned; nobody can wait for himself."""
        if threading.current_thread() is not self.thread:
            self.thread.join()

    def stop(self) -> None:
        """From its own thread: return once what runs now is done."""
        self._loop.stop()

    def watch(self, descriptor: int, action: Action) -> None:
        self._loop.add_reader(descriptor, _guarded, action)

    def watch_writing(self, descriptor: int, action: Action) -> None:
        self._loop.add_writer(descriptor, _guarded, action)

    def unwatch_writing(self, descriptor: int) -> None:
        self._loop.remove_writer(descriptor)

    def unwatch(self, descriptor: int) -> None:
        if descriptor >= 0:
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)

    def call(self, action: Action) -> None:
        """From any thread, even from the collector's midst. Once it has returned, nothing is kept or run."""
        try:
            self._loop.call_soon_threadsafe(_guarded, action)
        except RuntimeError:
            pass  # it is closed

    def later(self, seconds: float, action: Action) -> None:
        """From its own thread."""
        self._loop.call_later(seconds, _guarded, action)

    def on_signal(self, number: signal.Signals, action: Action) -> None:
        """Where it runs in the main thread."""
        self._loop.add_signal_handler(number, _guarded, action)


def _guarded(action: Action) -> None:
    try:
        action()
    except BaseException:  # a callback of the user's may even exit
        logging.getLogger("gpulease.pool").exception("the pool failed at one thing and goes on")
