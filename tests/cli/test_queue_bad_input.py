"""Wrong input about jobs: the contract's exit code, one sentence of what is wrong and one of what to do."""

from __future__ import annotations

from typing import Any

import pytest
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here

WRONG: list[tuple[int, str, list[str]]] = [
    (2, "No command", ["add"]),
    (2, "No command", ["add", "--"]),
    (2, "does not exist", ["add", "--cwd", "/no/such/folder", "--", "true"]),
    (2, "log cannot be written", ["add", "--log", "/no/such/folder/log", "--", "true"]),
    (2, "both given", ["add", "--exclusive", "--mem", "1G", "--", "true"]),
    (2, "both given", ["add", "--after", "1", "--after-any", "1", "--", "true"]),
    (2, "not a variable", ["add", "--env", "X", "--", "true"]),
    (2, "not a job id", ["add", "--after", "x", "--", "true"]),
    (2, "not a time", ["add", "--at", "whenever", "--", "true"]),
    (2, "not a length of time", ["add", "--time-limit", "soon", "--", "true"]),
    (2, "time-limit is 0", ["add", "--time-limit", "0", "--", "true"]),
    (2, "number of retries", ["add", "--retry", "-1", "--", "true"]),
    (2, "Invalid sweep", ["add", "--sweep", "x", "--", "echo", "{x}"]),
    (2, "has no {x}", ["add", "--sweep", "x=1,2", "--", "echo"]),
    (2, "cannot be read", ["add", "--file", "/no/such/file"]),
    (2, "others were given", ["add", "--file", "/dev/null", "--", "true"]),
    (2, "no command in it", ["add", "--file", "/dev/null"]),
    (1, "no such job", ["add", "--after", "99", "--", "true"]),
    (2, "itself", ["add", "--after", "3", "--", "true"]),
    (1, "devices", ["add", "-n", "5", "--", "true"]),
    (1, "There is no H100 here", ["add", "--model", "H100", "--", "true"]),
    (2, "not a device here", ["add", "-d", "9", "--", "true"]),
    (1, "No such job", ["show", "99"]),
    (1, "No such job: 50-60", ["kill", "50-60"]),
    (1, "No such job: 99", ["clean", "99"]),
    (1, "Job 99 is not there", ["wait", "1,99"]),
    (1, "the newest job is 2", ["add", "--after", "1-100000000", "--", "true"]),
    (2, "or a range", ["kill", "9-5"]),
    (2, "or a range", ["kill", "x"]),
    (2, "No job was named", ["kill"]),
    (2, "No job was named", ["pause"]),
    (1, "is complete, so it cannot be killed", ["kill", "1"]),
    (1, "cannot be paused", ["pause", "1"]),
    (1, "cannot be resumed", ["resume", "1"]),
    (1, "cannot be started", ["start", "1"]),
    (1, "cannot be edited", ["edit", "1", "--priority", "1"]),
    (1, "no place in the queue", ["move", "1"]),
    (1, "No such job", ["move", "77"]),
    (2, "Nothing to change", ["edit", "1"]),
    (1, "No such job", ["log", "99"]),
    (1, "no parameter", ["set", "no-such", "1"]),
    (2, "not a value", ["set", "keep-memory", "2"]),
    (2, "not a value", ["set", "polling", "0.01"]),
    (2, "not a value", ["set", "max-runs", "0"]),
    (2, "not a value", ["set", "hide-commands", "perhaps"]),
    (2, "not a limit", ["set", "limits", "user"]),
    (2, "not a length", ["set", "grace", "x"]),
]


@pytest.fixture(scope="module")
def shared() -> Any:
    """One broker for all of them, with one job that has ended and one that is held."""
    site = QueueSite()
    site.ensure_broker()
    site.end(site.submit("true"))
    site.submit("true", hold=True)
    yield site
    site.close()


@pytest.mark.parametrize(("code", "said", "words"), WRONG, ids=[" ".join(words)[:60] for _, _, words in WRONG])
def test_wrong_input(shared: QueueSite, code: int, said: str, words: list[str]) -> None:
    done = shared.run(*words)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 2, done.stderr
    assert "Traceback" not in done.stderr + shared.log()


def test_one_bad_line_of_ten_thousand_queues_nothing_and_is_named(queue: QueueSite) -> None:
    file = queue.folder / "jobs.txt"
    lines = [f"echo {number}" for number in range(10_000)]
    lines[7654] = "echo 'no end of this"
    file.write_text("\n".join(lines))
    done = queue.run("add", "--file", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert "Line 7655" in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert queue.ask("ls")["counts"] == {}


def test_more_gpus_than_the_machine_has_are_taken_with_hold_only(queue: QueueSite) -> None:
    assert queue.run("add", "-n", "5", "--", "true").returncode == 1
    assert queue.run("add", "-n", "5", "--hold", "--", "true").stdout == "1\n"


GOOD = {"cwd": "/", "environment": {}}
STRANGE: list[dict[str, Any]] = [
    {"request": {}, "options": {**GOOD, "time_limit": "x"}, "commands": [["true"]]},
    {"request": {}, "options": {**GOOD, "time_limit": -1}, "commands": [["true"]]},
    {"request": {}, "options": {**GOOD, "time_limit": True}, "commands": [["true"]]},
    {"request": {}, "options": {**GOOD, "retry": "x"}, "commands": [["true"]]},
    {"request": {}, "options": {**GOOD, "after": "x"}, "commands": [["true"]]},
    {"request": {}, "options": {**GOOD, "after": [True]}, "commands": [["true"]]},
    {"request": {}, "options": {**GOOD, "cwd": 3}, "commands": [["true"]]},
    {"request": {}, "options": {**GOOD, "cwd": "relative"}, "commands": [["true"]]},
    {"request": {}, "options": {"cwd": "/"}, "commands": [["true"]]},
    {"request": {}, "options": {**GOOD, "environment": {"A": 1}}, "commands": [["true"]]},
    {"request": {}, "options": {**GOOD, "environment": {"A": "x" * 600_000}}, "commands": [["true"]]},
    {"request": {}, "options": GOOD, "commands": []},
    {"request": {}, "options": GOOD, "commands": [[]]},
    {"request": {}, "options": GOOD, "commands": ["true"]},
    {"request": {}, "options": GOOD, "commands": [["true"], [""]]},
    {"request": {}, "options": GOOD, "commands": [["true", "x" * (128 << 10)]]},
    {"request": {}, "options": GOOD, "commands": [["a\0b"]]},
    {"request": {"not_before": "x"}, "options": GOOD, "commands": [["true"]]},
    {"request": {"gpus": 10**9}, "options": GOOD, "commands": [["true"]]},
]


@pytest.mark.parametrize("fields", STRANGE, ids=range(len(STRANGE)))
def test_strange_messages_are_refused_and_trouble_nobody(shared: QueueSite, fields: dict[str, Any]) -> None:
    with shared.raw() as raw:
        assert raw.ask("add", **fields)["error"]["code"] in ("usage", "not-found", "not-enough")
    assert "Traceback" not in shared.log()


@pytest.mark.parametrize(
    "select",
    [{"ids": [[1]]}, {"ids": "all"}, {"ids": [["a", "b"]]}, {"ids": [[1, 1]] * 501}, {"label": 3}, {"state": [1]}],
)
def test_strange_choices_are_refused(shared: QueueSite, select: dict[str, Any]) -> None:
    with shared.raw() as raw:
        assert raw.ask("kill", select=select)["error"]["code"] == "usage"
    assert "Traceback" not in shared.log()


@pytest.mark.parametrize(
    "changes",
    [{"command": []}, {"command": "x"}, {"cwd": None}, {"log": 1}, {"request": 3}, {"uid": 0}, {"state": "running"}],
)
def test_strange_changes_are_refused(shared: QueueSite, changes: dict[str, Any]) -> None:
    (id,) = [job["id"] for job in shared.jobs(state="held")]
    with shared.raw() as raw:
        assert raw.ask("edit", select={"ids": [[id, id]]}, changes=changes)["error"]["code"] == "usage"


@pytest.mark.parametrize(
    "fields",
    [
        b'"options":{"cwd":"/","environment":{}},"commands":[["echo","\\ud800"]]',
        b'"options":{"cwd":"/","environment":{}},"commands":[["true"]],"each":[{"log":"/tmp/x\\ud800"}]',
        b'"options":{"cwd":"/","environment":{"A":"\\uDfff\\ud800"}},"commands":[["true"]]',
        b'"options":{"cwd":"/\\ud800","environment":{}},"commands":[["true"]]',
    ],
)
def test_half_a_letter_anywhere_in_a_job_keeps_nobody_from_the_queue(queue: QueueSite, fields: bytes) -> None:
    """One message with such a path raised where grants are made, so that nobody got anything until it was removed."""
    with queue.raw() as raw:
        body = b'{"v":1,"do":"add","request":{},' + fields + b"}"
        raw.socket.sendall(len(body).to_bytes(4, "big") + body)
        assert raw.receive()["error"]["code"] == "protocol"
    assert queue.end(queue.submit("true"))[0]["state"] == "complete"
    assert queue.run("ls").returncode == 0
