"""Messages are held against their types, by one walk, on both sides."""

from __future__ import annotations

from typing import Any

import pytest

from gpulease import PROTOCOL
from gpulease.broker.core.lease_verbs import VERBS
from gpulease.errors import UsageError
from gpulease.model.jobs import AskedRow, JobSpec
from gpulease.model.request import RequestRow
from gpulease.model.values import Request
from gpulease.protocol.check import check, misfit
from gpulease.protocol.messages import REPLIES, REQUESTS
from gpulease.protocol.wire import Unpacker, pack

ADD: dict[str, Any] = {"do": "add", "request": {}, "commands": [["true"]], "options": {}}


def said(**fields: Any) -> dict[str, Any]:
    return {"v": PROTOCOL, **fields}


def test_every_verb_has_a_type() -> None:
    assert set(REQUESTS) == set(VERBS)
    assert set(REPLIES) | {"acquire", "why", "subscribe"} == set(VERBS)


def test_names_that_are_no_utf_8_go_through() -> None:
    name = b"/data/\xff\xfe.py".decode("utf-8", "surrogateescape")
    (message,) = Unpacker().feed(pack(said(**{**ADD, "commands": [["python", name]], "options": {"cwd": name}})))
    assert check(message)["commands"] == [["python", name]]
    assert message["options"]["cwd"] == name


@pytest.mark.parametrize(
    ("message", "at"),
    [
        ({"do": "kill"}, "select"),
        ({"do": "kill", "select": []}, "select"),
        ({"do": "kill", "select": {"ids": [[1, 2], [3, "4"]]}}, "select.ids[1][1]"),
        ({"do": "kill", "select": {"label": 3}}, "select.label"),
        ({"do": "renew", "duration": True}, "duration"),
        ({"do": "renew", "duration": float("nan")}, "duration"),
        ({"do": "moved", "jobs": [{"id": 1}, {"to": "x"}]}, "jobs[1].id"),
        ({"do": "moved", "jobs": [{"id": 1}] * 1025}, "jobs"),
        ({**ADD, "commands": [[]]}, "commands"),
        ({**ADD, "options": dict.fromkeys(map(str, range(65)))}, "options"),
        ({"do": "acquire", "request": {}, "kind": "x" * 1001}, "kind"),
    ],
)
def test_a_wrong_value_is_named_by_its_place(message: dict[str, Any], at: str) -> None:
    with pytest.raises(UsageError) as refused:
        check(said(**message))
    assert f"Invalid value for {at!r}" in refused.value.what
    assert refused.value.next_step


def test_what_may_be_missing_may_be_null() -> None:
    assert check(said(do="release", what=None, mine=True, gone=None))
    assert check(said(do="release"))


def test_an_answer_of_one_of_two_kinds_fits() -> None:
    assert misfit("ls", {"ok": {"ids": [1, "12_3"]}}) is None
    assert misfit("pause", {"ok": {"paused": True}}) is None
    assert misfit("pause", {"ok": {"ids": ["x y"], "skipped": []}}) == "ids[0] is 'x y'"


def test_rows_have_the_fields_of_what_they_show() -> None:
    assert set(RequestRow.__annotations__) == set(Request._fields)
    assert set(JobSpec._fields) - set(AskedRow.__annotations__) == {"environment", "transfer"}
    assert set(AskedRow.__annotations__) <= set(JobSpec._fields)
