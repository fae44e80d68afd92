"""`gpulease.acquire(...)`: leases from Python, for the life of a block or of the process."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from gpulease.client import connection
from gpulease.client.wait_notice import WaitNotice
from gpulease.errors import NotFound, UsageError
from gpulease.model.fields import request_fields, seconds
from gpulease.model.visible import NAMES, variables, wanted
from gpulease.system import cuda_state

if TYPE_CHECKING:
    from gpulease.client.engines import BackendConnection
    from gpulease.protocol.messages import Granted, StillWaiting

Placeholder = Callable[[int], object]
OnWait = Callable[["StillWaiting"], object]


class LeasedDevice(NamedTuple):
    """One device of a lease. Its number in this process is its place in `lease.devices`."""

    label: str
    uuid: str
    name: str
    vendor: str


class Held:
    """A lease that this process holds. As a context manager it sets the environment and restores it.

    A child made by fork neither holds nor releases it.
    """

    def __init__(
        self,
        granted: Granted,
        placeholder: Placeholder | None,
        directory: str | None = None,
        visible_by: str | None = None,
    ) -> None:
        self.id: str = granted["id"]
        self.devices = tuple(LeasedDevice(**device) for device in granted["devices"])
        self.memory: int | None = granted["memory"]
        self.until: float | None = granted["until"]
        self._visible_by = visible_by or granted.get("visible")
        self._pid = os.getpid()
        self.directory = directory
        self._released = False
        self.placeholders: list[object] = []  # what `placeholder` made, one for each device
        self._placeholder = placeholder
        _environment.enter(self)
        if placeholder is not None:
            self._occupy(placeholder)

    @property
    def indices(self) -> str:
        """As `gpulease get` prints them: `0,3`. It is text; `gpus` has numbers."""
        return ",".join(device.label for device in self.devices)

    @property
    def gpus(self) -> list[int]:
        """The same as numbers: `[0, 3]`. A MIG instance has that of its GPU."""
        return [int(device.label.partition(":")[0]) for device in self.devices]

    @property
    def environment(self) -> dict[str, str]:
        """The variables that show a child process just these devices."""
        return variables(self.devices, self._visible_by)

    def release(self) -> None:
        """Give back. A second time, or in a forked child, it does nothing; when it fails, it is still held."""
        if self._released or os.getpid() != self._pid:
            return
        self._free_placeholders()
        try:
            connection.ask("release", self.directory, what=[self.id])
        except NotFound:
            pass  # it ended in the meantime, by the clock or by somebody's hand
        self._released = True
        _environment.leave(self)  # last: requests that wait for the devices come first

    def __enter__(self) -> Held:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "released" if self._released else f"GPU {self.indices}"
        return f"<lease {self.id}: {state}>"

    def _occupy(self, placeholder: Placeholder) -> None:
        try:
            for number in range(len(self.devices)):
                self.placeholders.append(placeholder(number))
        except BaseException:
            self.release()
            raise

    def _free_placeholders(self) -> None:
        """By the function's own `release(what it made)`, else by what it made: its `release()` or `detach()`."""
        while self.placeholders:
            made = self.placeholders.pop()
            free = getattr(self._placeholder, "release", None)
            own = getattr(made, "release", None) or getattr(made, "detach", None)
            if callable(free):
                free(made)
            elif callable(own):
                own()


class _Environment:
    """The process has one environment and maybe many leases: it shows the newest that is held, and at last what was
    there before the first, in whatever order threads give back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[Held] = []
        self._before: dict[str, str | None] = {}

    def enter(self, lease: Held) -> None:
        with self._lock:
            if not self._held:
                self._before = {name: os.environ.get(name) for name in NAMES}
            self._held.append(lease)
            os.environ.update(lease.environment)

    def leave(self, lease: Held) -> None:
        with self._lock:
            if lease not in self._held:
                return  # two threads gave it back at once
            cuda_state.look()  # while the variables are as CUDA, if it was initialised under this lease, has read them
            newest = self._held[-1] is lease
            self._held.remove(lease)
            if newest:
                shown = self._held[-1].environment if self._held else {}
                ours = lease.environment  # what the program set itself in the meantime stays as it is
                kept = {name for name in NAMES if os.environ.get(name) == ours.get(name)}
                _set({name: value for name, value in {**self._before, **shown}.items() if name in kept})

    def renew_lock(self) -> None:
        """In a forked child another thread of the parent's may have held it."""
        self._lock = threading.Lock()


def _set(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


_environment = _Environment()
os.register_at_fork(after_in_child=_environment.renew_lock)


def acquire(
    gpus: int = 1,
    *,
    mem: int | str | None = None,
    model: str | Iterable[str] | None = None,
    devices: int | str | Iterable[int | str] | None = None,
    exclude: int | str | Iterable[int | str] | None = None,
    min_memory: int | str | None = None,
    max_leases: int | None = None,
    beside_outside: bool = False,
    mig: bool = False,
    priority: int = 5,
    wait: float | str | None = None,
    duration: float | str | None = None,
    note: str | None = None,
    visible_by: str | None = None,
    placeholder: Placeholder | None = None,
    until_released: bool = False,
    quiet: bool = False,
    on_wait: OnWait | None = None,
    kind: str = "acquire",
    name: None = None,
) -> Held:
    """Wait in the machine's one line, take devices, and point CUDA_VISIBLE_DEVICES at them.

    `wait` in seconds (or `"30m"`); 0 does not wait; None waits as long as it takes. Raises NotGranted.
    With `with` it is given back at the block's end, else with `release()` or the process's end; with
    `until_released` it outlives the process, until any of the user's gives it back.
    On a terminal or in a notebook it says on stderr that it waits and why, unless `quiet`; `on_wait` hears it instead.
    """
    given = dict(locals())  # the arguments, by their names
    refuse_name(name)
    if placeholder is not None and not callable(placeholder):
        raise UsageError(f"The placeholder is {placeholder!r}.", "Give a function of a device's number.")
    if on_wait is not None and not callable(on_wait):
        raise UsageError(f"on_wait is {on_wait!r}.", "Give a function of one argument.")
    visible_by = wanted(visible_by, os.environ, "visible_by")
    fields = {
        "request": request_fields(given),
        "kind": "reservation" if until_released else kind,
        "wait": None if wait is None else seconds(wait, "wait"),
        "note": note,
        "command": [word[:200] for word in sys.orig_argv[:50]],
    }
    if until_released and duration is not None:
        raise UsageError("`until_released` and `duration` were both given.", "Leave one of the two out.")
    cuda_state.warn_before("gpulease.acquire")
    granted, client = _wait_in_line(fields, quiet, on_wait)
    if until_released:
        connection.take(client, granted)
    connection.put_back(client)
    lease = Held(granted, placeholder, client.place.state, visible_by)
    cuda_state.warn_after("gpulease.acquire", lease.environment)
    return lease


def refuse_name(name: object) -> None:
    """`name` was the GPU's model once; a job has a name."""
    if name is not None:
        raise UsageError("A GPU is chosen by its model, not by a name.", "Write model= instead of name=.")


def _wait_in_line(fields: dict[str, Any], quiet: bool, on_wait: OnWait | None) -> tuple[Granted, BackendConnection]:
    waiting, labels = WaitNotice(quiet or on_wait is not None), None
    try:
        granted, client = connection.acquire(fields, on_wait or waiting.tell, connection.take_kept())
        labels = ",".join(device["label"] for device in granted["devices"])
    finally:
        waiting.end(labels)
    return granted, client
