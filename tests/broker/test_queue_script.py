"""A script that is edited after `add`: the job runs what is there, and says so."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here

from gpulease.api.job_commands import script_of
from gpulease.render.hidden import of_job

LATER = 1_800_000_000


def edit(script: Path, text: str, moment: float) -> None:
    script.write_text(text)
    os.utime(script, (moment, moment))


def test_the_log_and_show_say_that_it_was_changed(queue: QueueSite) -> None:
    """Version 2 ran, though version 1 was queued, and nobody was told."""
    script = queue.folder / "train.py"
    edit(script, "print('version 1')", LATER)
    words = ("add", "--cwd", str(queue.folder), "--", sys.executable, "train.py")
    same = int(queue.run(*words).stdout)
    queue.end(same)
    held = int(queue.run(*words[:1], "--hold", *words[1:]).stdout)
    assert "was changed" not in queue.run("show", str(held)).stdout
    edit(script, "print('version 2')", LATER + 60)
    assert f"{script} was changed at" in queue.run("show", str(held), COLUMNS="300").stdout
    queue.act("resume", held)
    (job,) = queue.end(held)
    said, version = queue.output(held).splitlines()
    assert said.startswith(f"gpulease: {script} was changed after this job was added (2027-")
    assert version == "version 2"
    assert (job["script"], job["script_changed"]) == (str(script), (LATER + 60) * 1000)
    assert f"{script} was changed at" in queue.run("show", str(held), COLUMNS="300").stdout
    assert queue.output(same) == "version 1\n"
    assert "was changed" not in queue.run("show", str(same)).stdout
    edit(script, "print('version 1')", LATER)
    queue.act("retry", held)
    assert queue.end(held)[0]["script_changed"] is None
    assert of_job(job, job["user"])["script"] == str(script)
    assert of_job(job, "another")["script"] is None  # where hide-commands is on


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["python", "-u", "a.py", "--lr", "1"], "a.py"),
        (["./run.sh"], "run.sh"),
        (["sh", "-c", "cd x; python a.py && python b.py"], "a.py"),
        (["torchrun", "--nproc-per-node", "2", "a.py", "b.py"], "a.py"),
        (["python", "-m", "package"], None),
        (["python", "none.py"], None),
        (["python", "folder.py"], None),
    ],
)
def test_which_script_a_command_runs(tmp_path: Path, words: list[str], found: str | None) -> None:
    for name in ("a.py", "b.py", "run.sh"):
        (tmp_path / name).touch()
    (tmp_path / "folder.py").mkdir()
    seen = script_of([words], str(tmp_path)).get("script")
    assert (seen and os.path.normpath(seen)) == (found and str(tmp_path / found))
    both = [["python", "a.py", "1"], ["python", "a.py", "2"]]
    assert script_of(both, str(tmp_path))["script"] == str(tmp_path / "a.py")
    assert script_of([*both, ["python", "b.py"]], str(tmp_path)) == {}
