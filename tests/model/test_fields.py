"""A field has one home: the rows of model/fields.py agree with the types that people and mypy read."""

from __future__ import annotations

import inspect

import pytest

import gpulease
from gpulease.cli.parsing import Options
from gpulease.errors import UsageError
from gpulease.model.fields import JOB, NAMES, OWN, RELATIVE, REQUEST, Field, kept
from gpulease.model.jobs import JobSpec
from gpulease.model.request import WIRE
from gpulease.model.values import Request
from gpulease.protocol.messages import JobRow
from gpulease.slurm.options import REFUSED
from gpulease.slurm.rows import request_row

INNER = {"script", "script_time", "transfer", "command"}  # the client finds them, or they are said in another way
OF_A_CLIENT = {"env", "no_env", "shell", "force", "command"}  # of `submit`, and no field of a job


def test_a_request_has_the_fields_of_the_table() -> None:
    assert set(Request._fields) == WIRE
    assert [row.wire for row in REQUEST if row.wire not in Request._field_defaults] == []


@pytest.mark.parametrize("row", JOB, ids=lambda row: row.name)
def test_what_is_said_of_a_job_is_kept_and_shown(row: Field) -> None:
    if row.wire and not row.apart:
        assert row.wire in JobSpec._fields
    if row.wire in JobSpec._fields and row.help:
        assert row.wire in JobRow.__annotations__


def test_a_spec_has_what_was_said_and_the_environment_and_the_request() -> None:
    assert set(JobSpec._fields) - {row.wire for row in JOB} == {"environment", "request"}


def test_the_signature_of_submit_has_every_field() -> None:
    said = {row.name for row in (*REQUEST, *JOB) if not row.alone and row.name not in INNER}
    assert set(inspect.signature(gpulease.submit).parameters) - OF_A_CLIENT == said - {"at_most"}
    assert "at_most" in inspect.signature(gpulease.sweep).parameters


@pytest.mark.parametrize("call", [gpulease.acquire, gpulease.submit])
def test_defaults_in_python_are_those_of_the_options(call: object) -> None:
    parameters = inspect.signature(call).parameters  # type: ignore[arg-type]
    for row in REQUEST:
        if row.name in parameters:
            assert parameters[row.name].default in (row.default, False), row.name


def test_acquire_takes_what_is_not_for_jobs_alone() -> None:
    parameters = set(inspect.signature(gpulease.acquire).parameters)
    assert {row.name for row in REQUEST if not row.job} <= parameters


@pytest.mark.parametrize("verb", ["add", "edit"])
def test_commands_have_an_option_for_each_field(verb: str) -> None:
    from gpulease.cli.main import load

    options = Options()
    load(verb).configure(options)
    there = {about["dest"] for about in options.flags.values()}
    rows = (*REQUEST, *JOB)
    wanted = {row.name for row in rows if row.help} if verb == "add" else {row.changed_as for row in rows if row.change}
    assert wanted <= there


def test_slurm_knows_or_refuses_every_field_of_a_request() -> None:
    assert set(request_row({})) == set(Request._fields)
    used = {"gpus", "models", "priority", "not_before", "duration", RELATIVE}
    assert used | set(REFUSED) == set(Request._fields)


def test_jobs_of_a_batch_have_texts_of_their_own() -> None:
    assert set(OWN) == {"name", "label", "note", "log"}


@pytest.mark.parametrize("row", [*REQUEST, *JOB], ids=lambda row: row.name)
def test_a_stranger_gets_nothing_past_a_kind(row: Field) -> None:
    """A value of a wrong type is refused by every field that a client may send."""
    if row.apart or not row.wire:
        return
    with pytest.raises(UsageError):
        kept([row], {row.wire: {"no": "value"}}, {})


def test_names_are_the_arguments_of_requests() -> None:
    assert NAMES[0] == "gpus"
    assert len(set(NAMES)) == len(NAMES)
