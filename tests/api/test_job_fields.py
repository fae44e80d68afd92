"""What is said about a job reaches the broker in one form, and a mistake is told in the caller's words."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import gpulease
from gpulease.api.job_commands import job_changes, job_fields, log_path
from gpulease.errors import UsageError
from gpulease.model.fields import as_argument, as_option, changed_fields, request_fields
from gpulease.model.request import read_request


def test_a_folder_for_logs_ends_with_a_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path.parent)
    for path in (tmp_path, str(tmp_path), f"{tmp_path}/", tmp_path.name):
        assert log_path(path) == f"{tmp_path}/"
    assert log_path(f"{tmp_path.name}/log") == f"{tmp_path}/log"
    with pytest.raises(UsageError):
        log_path(f"{tmp_path}/none/")


def test_options_and_arguments_make_the_same_request() -> None:
    typed = {"gpus": 1, "mem": "6G", "model": "A100, V100", "devices": "0,GPU-a", "priority": 5, "duration": "1h"}
    given = {
        "gpus": 1,
        "mem": 6 << 30,
        "model": ["A100", "V100"],
        "devices": [0, "GPU-a"],
        "priority": 5,
        "duration": 3600,
    }
    assert (
        request_fields(typed, as_option)
        == request_fields(given)
        == {
            "gpus": 1,
            "memory": 6 << 30,
            "models": ["A100", "V100"],
            "devices": ["0", "GPU-a"],
            "priority": 5,
            "duration": 3600,
        }
    )


@pytest.mark.parametrize(
    ("given", "option", "argument"),
    [
        ({"model": ","}, "--model is empty", "model is empty"),
        ({"max_leases": 1}, "--max-leases is for", "max_leases is for"),
        ({"duration": -1}, "--for is -1", "duration is -1"),
        ({"at": []}, "--at is []", "at is []"),
        ({"devices": 1.5}, "--devices is 1.5", "devices is 1.5"),
    ],
)
def test_a_mistake_is_told_in_the_words_of_the_caller(given: dict[str, Any], option: str, argument: str) -> None:
    for said, text in ((as_option, option), (as_argument, argument)):
        with pytest.raises(UsageError) as reply:
            request_fields(given, said)
        assert reply.value.what.startswith(text)


def test_none_takes_back_what_a_job_had() -> None:
    assert changed_fields({"mem": None, "model": None, "at": None}) == {
        "memory": None,
        "models": [],
        "not_before": None,
        "relative": False,
    }
    changes = job_changes({"after": None, "time_limit": None, "new_label": "x"}, as_argument, 0.0)
    assert changes == {"after": [], "after_any": False, "time_limit": None, "label": "x"}
    with pytest.raises(UsageError):
        job_changes({}, as_argument, 0.0)


def test_jobs_to_come_after_are_one_kind_or_the_other() -> None:
    assert job_fields({"after": "3,J4"})["after"] == [3, 4]
    assert job_fields({"after": 3, "after_any": True})["after_any"] is True
    assert "after" not in job_fields({"after": (), "after_any": False})
    with pytest.raises(UsageError, match="--after and --after-any were both given"):
        job_fields({"after": "3", "after_any": "4"}, as_option)


def test_a_time_of_day_is_the_next_one() -> None:
    now = time.mktime((2030, 1, 1, 12, 0, 0, 0, 0, -1))
    assert request_fields({"at": "13:00"}, now=now)["not_before"] == now + 3600
    assert request_fields({"at": "11:00"}, now=now)["not_before"] == now + 23 * 3600
    assert request_fields({"at": "in 2h"}, now=now) == {"not_before": now + 7200, "relative": True}


@pytest.mark.parametrize("take", [gpulease.acquire, gpulease.Pool])
def test_the_name_of_a_gpu_is_refused_with_the_word_model(take: Any) -> None:
    with pytest.raises(UsageError) as caught:
        take(name="A100")
    assert "model=" in str(caught.value)


def test_a_number_too_small_for_bytes_and_an_empty_list_of_devices_are_refused() -> None:
    with pytest.raises(UsageError, match=r"mem is 6, which would be bytes\. Write it with its unit, as '6G'"):
        request_fields({"mem": 6})
    with pytest.raises(UsageError, match="devices is empty"):
        request_fields({"devices": []})
    assert request_fields({"mem": 1 << 20, "min_memory": 0, "exclude": []}) == {"memory": 1 << 20, "min_memory": 0}
    assert "after" not in job_fields({"after": None, "after_any": None})


def test_errors_of_a_request_name_the_argument() -> None:
    for field, argument in {"gpus": "gpus", "memory": "mem", "not_before": "at", "min_memory": "min_memory"}.items():
        with pytest.raises(UsageError, match=f"Invalid value for {argument}"):
            read_request({field: "x"})
