"""What anybody may write is checked before it is shown: comments of Slurm's jobs, records and notes in files."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gpulease.api.allocation_keeper import is_served, remove
from gpulease.errors import SlurmUnavailable
from gpulease.slurm import commands, rows
from gpulease.slurm.known_jobs import forgotten_row, record_of, with_last
from gpulease.slurm.records import KEPT, Records
from gpulease.system.places import LOCK, Place

UID = 1000
RECORD: dict[str, Any] = {
    "commands": [["train", "now"]],
    "each": [],
    "request": {"gpus": 1},
    "options": {"cwd": "/w", "name": None, "retry": 2},
    "added": 1000.0,
    "log": "/logs/%j.log",
    "uid": UID,
}
OURS = {"token": "ab", "command": ["train", "now"], "job_name": "train", "retry": 2}


def job(comment: str, **more: Any) -> dict[str, Any]:
    reply = {"job_id": 7, "user_id": UID, "user_name": "ada", "name": "train", "job_state": "RUNNING", "nodes": "node1"}
    return {**reply, "comment": comment, **more}


def ours(**more: Any) -> str:
    return f"gpulease {json.dumps({**OURS, **more})}"


@pytest.fixture
def records(tmp_path: Path) -> Records:
    made = Records({"GPULEASE_DIR": str(tmp_path)})
    made.prepare()
    return made


def test_what_is_no_json_is_a_value_error_also_before_json_is_loaded() -> None:
    program = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "json"]:
    del sys.modules[name]
from gpulease.protocol.wire import from_text
for text in ("{", "[1,", '{"a":}', '"', "[" * 100000, "", "nope", "{} {}"):
    try:
        from_text(text)
    except ValueError:
        continue
    sys.exit(f"taken: {text[:9]}")
print(from_text('{"a": [1]}'))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("{'a': [1]}\n", "")


@pytest.mark.parametrize(
    "comment",
    [
        "gpulease {",
        "gpulease ",
        "gpulease []",
        'gpulease {"token":"a","command":[1,{}],"note":5,"label":[]}',
        'gpulease {"token":["a"]}',
        'gpulease {"note":"without a token"}',
        ours(command="train"),
        ours(command=[]),
        ours(name={}),
        ours(kind=3),
        ours(retry="2"),
        ours(retry=-1),
        ours(retry=True),
        ours()[:-5],
    ],
)
def test_a_comment_that_is_not_as_ours_is_that_of_a_plain_job(comment: str) -> None:
    assert rows.comment_of(job(comment)) == {}
    row = rows.job_row(job(comment), "7", {}, 0.0)
    assert (row["command"], row["name"], row["note"], row["retry"]) == (["train"], "train", None, 0)
    assert rows.lease_row(job(comment), "7", None)["kind"] == "run"


@pytest.mark.parametrize(
    "change",
    [
        {"commands": []},
        {"commands": [["a", 1]]},
        {"commands": "train"},
        {"each": [{"name": 3}]},
        {"each": 5},
        {"each": [{}, {}]},
        {"request": {"gpus": "one"}},
        {"request": None},
        {"options": {}},
        {"options": {"cwd": "/w", "log": []}},
        {"added": None},
        {"added": float("nan")},
        {"log": 4},
        {"forgotten": [1]},
        {"uid": "root"},
    ],
)
def test_a_file_that_is_no_record_is_passed_over(records: Records, change: dict[str, Any]) -> None:
    records.write("good", RECORD)
    records.submitted("good", "7")
    records.write("bad", {**RECORD, **change})
    Path(records.folder, "8.cut.json").write_text(json.dumps(RECORD)[:-4])
    Path(records.folder, "odd_id.name.json").write_text(json.dumps(RECORD))
    assert [(token, record["id"]) for token, record in records.by_token().items()] == [("good", "7")]


def test_a_record_belongs_to_the_job_of_its_owner_with_its_id() -> None:
    kept = {"ab": {**RECORD, "id": "7"}, "cd": {**RECORD, "id": None}}
    assert record_of(job(ours()), "7", "ab", kept) is kept["ab"]
    assert record_of(job(ours(), user_id=UID + 1), "7", "ab", kept) is None
    assert record_of(job(ours()), "8", "ab", kept) is None
    assert record_of(job(ours()), "9", "cd", kept) is kept["cd"]  # the answer of sbatch was lost
    assert rows.carries(job(ours()), "ab", UID)
    assert not rows.carries(job(ours()), "ab", UID + 1)


def test_a_note_is_of_one_token_and_goes_with_what_has_expired(records: Records) -> None:
    note = Path(records.ends, "7.ab")
    note.write_text("0 100 200 1 ab 0\n")
    end = records.end_of("7", "ab")
    assert end is not None
    assert (end.code, end.began, end.ended, end.run, end.killed) == (0, 100.0, 200.0, 0, False)
    note.write_text("143 100 200 1 ab 2 killed\n")
    end = records.end_of("7", "ab")
    assert end is not None
    assert (end.run, end.killed, end.is_of(2), end.is_of(1)) == (2, True, True, False)
    assert records.end_of("7", "cd") is None
    for text in ("0 100 200 1 cd 0", "0 100 200 1 ab", "0 nan 200 1 ab 0", "", "x"):
        note.write_text(text)
        assert records.end_of("7", "ab") is None
    Path(records.ends, "8.cd").write_text("0 100 200 1 cd\n")
    records.write("ab", RECORD)
    long_ago = time.time() - KEPT - 60
    for path in (note, Path(records.folder, "ab.json")):
        os.utime(path, (long_ago, long_ago))
    assert records.by_token() == {}
    assert os.listdir(records.ends) == ["8.cd"]


def test_the_name_that_slurm_tells_wins_once_it_was_changed() -> None:
    def name(comment: str, told: str, kept: str | None = None) -> str | None:
        return rows.job_row(job(comment, name=told), "7", {"name": kept, "command": ["x"]}, 0.0)["name"]

    assert name(ours(), "train") is None
    assert name(ours(), "other") == "other"
    assert name(ours(name="mine", job_name=None), "mine", "mine") == "mine"
    assert name(ours(name="mine", job_name=None), "other", "mine") == "other"
    assert name(ours(), "train", "of this task") == "of this task"
    assert name(ours(), "", "kept") == "kept"


def test_a_new_name_is_kept_for_the_time_after_slurm_has_forgotten_the_job(records: Records) -> None:
    records.write("ab", {**RECORD, "commands": [["a"], ["b"]]})
    records.submitted("ab", "7")
    records.rename("ab", [1], "new")
    assert records.by_token()["ab"]["each"] == [{}, {"name": "new"}]
    assert forgotten_row("7_1", records.by_token()["ab"], None, None, 0.0)["name"] == "new"


def test_tries_are_counted_by_slurm_and_by_the_jobs_own_notes(records: Records) -> None:
    assert rows.job_row(job(ours(), restart_cnt=2), "7", {}, 0.0)["tries"] == 3
    assert rows.job_row(job(ours(), restart_cnt=1, job_state="PENDING"), "7", {}, 0.0)["tries"] == 1
    Path(records.ends, "7.ab.began").write_text("0\n0\n0 ended\n1\n")
    assert records.tries_of("7", "ab") == 3
    assert records.tries_of("7", "cd") == 0


def test_what_was_added_since_slurm_last_told_is_said(records: Records) -> None:
    def reply() -> str:
        return with_last(SlurmUnavailable("Away."), records).what

    assert reply() == "Away."
    records.write("ab", {**RECORD, "added": time.time() - 50, "commands": [["a"], ["b"]]})
    assert reply() == "Away."  # it was not taken yet
    records.submitted("ab", "7")
    assert reply() == "Away. You have added 2 jobs."
    records.saw({"running": 1}, time.time() - 100)
    assert reply().endswith("ago you had these jobs: 1 running. You have added 2 jobs since.")
    records.saw({"running": 3}, time.time())
    assert reply().endswith("ago you had these jobs: 3 running.")
    for text in ("{", "[]", '{"time":1,"counts":[]}', '{"time":"x","counts":{}}'):
        Path(records.folder, "last-seen").write_text(text)
        assert reply() == "Away. You have added 2 jobs."


def test_a_configuration_that_is_not_there_is_told_of_at_once() -> None:
    with pytest.raises(SlurmUnavailable, match="SLURM_CONF is '/nowhere', and there is no such file"):
        commands.run(["sleep", "600"], environ={**os.environ, "SLURM_CONF": "/nowhere"})


def test_the_folder_of_an_allocation_goes_after_its_broker_has_written_its_last(tmp_path: Path) -> None:
    """A process holds the broker's lock, writes into the folder when it is told to, and ends."""
    folder = tmp_path / "broker"
    folder.mkdir()
    place = Place("own", str(folder))
    program = f"""
import fcntl
lock = open({place.kept(LOCK)!r}, "w")
fcntl.flock(lock, {fcntl.LOCK_EX})
print("held", flush=True)
input()
open({str(folder / "last")!r}, "x").close()
"""
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == "held\n"
        assert is_served(place)
        removing = threading.Thread(target=remove, args=(place,))
        removing.start()
        broker.communicate("\n", timeout=60)
        removing.join(60)
    assert broker.returncode == 0
    assert not folder.exists()
    assert not is_served(place)
