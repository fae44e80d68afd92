"""Variables that are kept from the queue: named, or secret by their names; and what a job gets all the same."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.queue_site import QueueSite, fresh_queue, inside  # noqa: F401  # pytest finds the fixtures here
from support.waiting import wait_until

import gpulease
from gpulease.errors import UsageError
from gpulease.model.quantities import SECRETS as SECRET_NAMES
from gpulease.model.quantities import matching

SECRETS = {"DB_PASSWORD": "s3cret-1", "AWS_SECRET_ACCESS_KEY": "s3cret-2", "GITHUB_TOKEN": "s3cret-3"}
USUAL = (
    "OPENAI_API_KEY", "AWS_ACCESS_KEY_ID", "NPM_TOKEN", "REPLICATE_API_TOKEN", "SLACK_WEBHOOK_URL", "DATABASE_URL",
    "AZURE_CLIENT_SECRET", "AZURE_STORAGE_CONNECTION_STRING", "PYPI_API_TOKEN", "ANTHROPIC_API_KEY", "PGPASSWORD",
)  # fmt: skip
OF_TRAINING = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "COMET_API_KEY", "NEPTUNE_API_TOKEN")
HARMLESS = ("TOKENIZERS_PARALLELISM", "SSH_AUTH_SOCK", "MAX_TOKENS", "KEY", "GOOGLE_APPLICATION_CREDENTIALS")
USEFUL = {"WANDB_API_KEY": "key-1", "HF_TOKEN": "key-2"}
SHOW = (
    "echo ${DB_PASSWORD-none} ${AWS_SECRET_ACCESS_KEY-none} ${GITHUB_TOKEN-none} ${WANDB_API_KEY-none} ${HF_TOKEN-none}"
)


def added(queue: QueueSite, *words: str, **more: str) -> tuple[str, str]:
    """What the job said, and what `add` said about it."""
    done = queue.run("add", *words, "--", "sh", "-c", SHOW, **{**SECRETS, **USEFUL, **more})
    assert done.returncode == 0, done.stderr
    id = int(done.stdout)
    queue.end(id)
    return queue.output(id).strip(), done.stderr


def on_disk(queue: QueueSite, text: str) -> bool:
    return any(text.encode() in path.read_bytes() for path in Path(queue.directory).glob("state.db*"))


def test_secrets_by_name_do_not_reach_the_disk_and_add_says_so(queue: QueueSite) -> None:
    output, reply = added(queue)
    assert output == "none none none key-1 key-2"
    assert "AWS_SECRET_ACCESS_KEY, DB_PASSWORD, GITHUB_TOKEN" in reply
    assert on_disk(queue, "key-1")
    assert not any(on_disk(queue, secret) for secret in SECRETS.values())


def test_the_usual_secrets_are_left_out_and_the_keys_that_training_reads_are_not() -> None:
    assert matching([*USUAL, *OF_TRAINING, *HARMLESS], SECRET_NAMES) == list(USUAL)
    assert matching(["A_TOKEN", "B_TOKEN", "b_key"], ["*_TOKEN", "!b*", "B_KEY"]) == ["A_TOKEN"]


def test_what_is_removed_is_gone_from_the_file_and_from_its_log(queue: QueueSite) -> None:
    """Seconds after `rm` it was still in the write-ahead log, and for ever in free pages."""
    output, _ = added(queue, "--env", "DB_PASSWORD", "--name", "name-of-it")
    assert output.startswith("s3cret-1")
    assert on_disk(queue, "s3cret-1")
    queue.ask("rm", select={"last": True})
    wait_until(lambda: not on_disk(queue, "s3cret-1") and not on_disk(queue, "name-of-it"))


def test_an_ended_job_whose_variables_were_forgotten_runs_again_with_new_ones(queue: QueueSite) -> None:
    done = queue.run("add", "--", "sh", "-c", "echo $MINE ${GITHUB_TOKEN-none} ${DB_PASSWORD-none}", MINE="old")
    id = int(done.stdout)
    queue.end(id)
    (folder,) = {path.parent for path in Path(queue.directory).glob("state.db")}
    queue.kill_broker()
    with closing(sqlite3.connect(folder / "state.db")) as database, database:  # as after a day
        database.execute("DELETE FROM environments")
    queue.ensure_broker()
    refused = queue.run("retry", str(id))
    assert refused.returncode == 1
    assert "its variables were forgotten" in refused.stderr
    assert "gpulease retry --new-env" in refused.stderr
    again = queue.run("retry", str(id), "--new-env", "--env", "DB_PASSWORD", MINE="new", **SECRETS)
    assert again.returncode == 0, again.stderr
    assert "does not get AWS_SECRET_ACCESS_KEY, GITHUB_TOKEN" in again.stderr
    queue.end(id)
    assert queue.output(id).split("\n")[-2] == "new none s3cret-1"


def test_one_is_kept_by_its_name_and_others_are_left_out_by_theirs(queue: QueueSite) -> None:
    output, reply = added(queue, "--env", "DB_PASSWORD", "--env", "GITHUB_TOKEN=other", "--no-env", "wandb_*")
    assert output == "s3cret-1 none other none key-2"
    assert "DB_PASSWORD" not in reply
    assert "WANDB" not in reply
    assert not on_disk(queue, "key-1")


def test_the_list_is_a_parameter(queue: QueueSite) -> None:
    queue.ask("set", name="env-exclude", value="none")
    assert added(queue) == ("s3cret-1 s3cret-2 s3cret-3 key-1 key-2", "")
    queue.ask("set", name="env-exclude", value="HF_* *KEY")
    assert added(queue)[0] == "s3cret-1 none s3cret-3 none none"


def test_the_broker_leaves_them_out_of_what_any_client_sends(queue: QueueSite) -> None:
    options: dict[str, Any] = {
        "cwd": "/",
        "environment": {**SECRETS, **USEFUL},
        "env_kept": ["DB_PASSWORD"],
        "hold": True,
    }
    reply = queue.ask("add", request={}, options=options, commands=[["true"]])
    assert reply["left_out"] == ["AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN"]
    (row,) = queue.ask("show", select={"last": True}, environment=True)["jobs"]
    assert set(row["environment"]) == {"DB_PASSWORD", *USEFUL}
    with pytest.raises(UsageError):
        queue.ask("add", request={}, options={**options, "env_kept": "x"}, commands=[["true"]])


@pytest.mark.usefixtures("inside")
def test_in_python_too(queue: QueueSite, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SECRETS, **USEFUL}.items():
        monkeypatch.setenv(name, value)
    with pytest.warns(UserWarning, match="does not get AWS_SECRET_ACCESS_KEY, GITHUB_TOKEN"):
        job = gpulease.submit(["sh", "-c", SHOW], env={"DB_PASSWORD": "mine"}, no_env="HF_*")
    job.wait()
    assert job.log().strip() == "mine none none key-1 none"


@pytest.mark.parametrize("words", [["--env", "NOT_SET_ANYWHERE"], ["--env", "=x"], ["--no-env", ""]])
def test_wrong_names_are_refused(queue: QueueSite, words: list[str]) -> None:
    assert queue.run("add", *words, "--", "true").returncode == 2
