"""A probe that hangs costs its caller the deadline once, and nothing afterwards."""

from __future__ import annotations

import threading

import pytest
from support.waiting import wait_until

from gpulease.errors import DriverError, DriverHangs
from gpulease.model.values import Sample
from gpulease.system.detect import WithDeadline


class Hanging:
    def __init__(self) -> None:
        self.release = threading.Event()
        self.calls = 0

    def snapshot(self) -> Sample:
        self.calls += 1
        self.release.wait(60)
        return Sample(1.0, ())


class Failing:
    def snapshot(self) -> Sample:
        raise DriverError("The driver fails.")


def test_a_hanging_driver_is_an_error_and_is_not_asked_again_while_it_hangs() -> None:
    probe = Hanging()
    guarded = WithDeadline(probe, 0.05)
    for _ in range(3):
        with pytest.raises(DriverHangs):
            guarded.snapshot()
    wait_until(lambda: probe.calls)
    assert probe.calls == 1
    probe.release.set()
    assert guarded._hanging is not None
    guarded._hanging.join(10)
    guarded._seconds = 30  # for an answer that comes at once, on whatever machine
    assert guarded.snapshot() == Sample(1.0, ())
    assert probe.calls == 2


def test_an_error_of_the_driver_arrives_as_itself() -> None:
    with pytest.raises(DriverError, match="The driver fails"):
        WithDeadline(Failing(), 5).snapshot()
