"""Alarms whose subject is gone are gone too; the others come in their order."""

from __future__ import annotations

from gpulease.broker.core.events import AlarmRang
from gpulease.broker.core.instructions import SetAlarm
from gpulease.broker.edge.clock import SPARE, Alarms


def test_alarms_come_when_they_are_due_in_their_order() -> None:
    alarms = Alarms()
    for alarm in (
        SetAlarm(3.0, "until", "L3"),
        SetAlarm(1.0, "plan"),
        SetAlarm(2.0, "until", "L2"),
        SetAlarm(1.0, "plan"),
    ):
        alarms.set(alarm)
    assert list(alarms.due(0.5)) == []
    assert list(alarms.due(2.0)) == [AlarmRang("plan"), AlarmRang("plan"), AlarmRang("until", "L2")]
    assert alarms.next == 3.0


def test_one_that_is_set_anew_comes_at_the_new_time_only() -> None:
    alarms = Alarms()
    alarms.set(SetAlarm(1.0, "until", "L1"))
    alarms.set(SetAlarm(5.0, "until", "L1"))
    assert list(alarms.due(4.0)) == []
    assert list(alarms.due(5.0)) == [AlarmRang("until", "L1")]


def test_requests_that_leave_leave_no_alarm_behind() -> None:
    """A million that asked for a wait of a year and left within a second are not kept for a year."""
    alarms = Alarms()
    alarms.set(SetAlarm(7.0, "deadline", "kept"))
    for number in range(10 * SPARE):
        alarms.set(SetAlarm(1e9, "deadline", f"L{number}"))
        alarms.drop("deadline", f"L{number}")
    assert len(alarms) <= SPARE + 3
    assert list(alarms.due(2e9)) == [AlarmRang("deadline", "kept")]
