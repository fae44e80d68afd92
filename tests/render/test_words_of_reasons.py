"""What verbs say of why something waits or ended, and how much they left out."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here

from gpulease.pool import progress


def test_explain_names_the_jobs_and_that_they_are_ending(queue: QueueSite) -> None:
    stubborn = queue.shell("trap '' TERM; echo here; while :; do sleep 0.1; done", {"gpus": 4})
    queue.said(stubborn, "here")
    assert queue.run("explain").stdout == "You have no waiting requests.\n"
    late = queue.submit("true")
    explained = queue.run("explain", str(late)).stdout
    assert explained.count(f"(J{stubborn}) until it ends; it has no time limit.") == 4
    assert f"J{late} waits. It wants one device" in queue.run("explain").stdout
    assert [row["id"] for row in queue.json("explain")["requests"]] == [f"J{late}"]
    queue.run("kill", str(stubborn))
    ending = queue.run("explain", str(late)).stdout
    assert f"J{stubborn} is ending." in ending or queue.job(stubborn)["state"] == "killed"


def test_explain_of_a_held_job_names_resume(queue: QueueSite) -> None:
    id = queue.submit("true", hold=True)
    assert f"`gpulease resume {id}`" in queue.run("explain", str(id)).stderr


def test_wait_says_why_jobs_did_not_end_well_and_how_many_are_left(queue: QueueSite) -> None:
    failed = queue.submit("false")
    follows = queue.submit("true", after=[failed])
    limited = queue.shell("sleep 600", time_limit=0.2)
    queue.end(failed, follows, limited)
    assert queue.job(follows)["why"]
    one = queue.run("wait", str(follows)).stdout
    assert one.startswith(f"{follows} killed")
    assert queue.job(follows)["why"] in one
    assert f"({queue.job(limited)['why']}): {limited}" in queue.run("wait", "1-3").stdout
    held = queue.submit("true", hold=True)
    done = queue.run("wait", f"{failed},{held}", "--timeout", "1")
    assert done.returncode == 75
    assert "1 of 2 jobs did not end in time" in done.stderr


def test_ls_counts_held_jobs_apart_and_the_rest_of_those_that_were_chosen(queue: QueueSite) -> None:
    queue.ask("pause", queue=True)
    queue.submit_all([["true"]] * 3, label="x")
    queue.submit_all([["true"]] * 4, hold=True)
    shown = queue.run("ls", "--most", "1").stdout
    assert "and 2 more that wait; see --most" in shown
    assert "and 3 more that are held; see --most" in shown
    assert queue.run("ls", "--label", "x", "--most", "2").stdout.rstrip().endswith("and 1 more; see --most")
    assert "more" not in queue.run("ls", "--label", "x", "--most", "3").stdout


def test_one_long_value_does_not_squeeze_the_table_of_settings(queue: QueueSite) -> None:
    assert queue.run("set", "env-exclude", " ".join(f"SECRET_NUMBER_{number}" for number in range(8))).returncode == 0
    lines = queue.run("set", COLUMNS="80").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].index("MEANING") <= 80 - 30
    piped = queue.run("set").stdout.splitlines()
    assert any("SECRET_NUMBER_7" in line for line in piped)
    assert piped[0].index("MEANING") < 80


def test_names_of_jobs_are_refused_with_a_word_on_labels(queue: QueueSite) -> None:
    assert "chosen by label" in queue.run("kill", "exp1").stderr
    assert "--label" in queue.run("ls", "--name", "exp").stderr


@pytest.mark.parametrize("columns", ["40", "60", "80"])
def test_the_memory_has_its_heading_at_every_width(queue: QueueSite, columns: str) -> None:
    shown = queue.run("status", COLUMNS=columns).stdout.splitlines()
    assert any("MEMORY" in line and "GPU" in line for line in shown)


def test_a_notebook_without_widgets_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    bar = progress.Bar("work", ([1, 2],), lambda: ["0"])
    bar.advance(progress.DONE)
    bar.advance(progress.FAILED)
    bar.close()
    shown = capsys.readouterr().err
    assert shown.startswith("work 2/2 ")
    assert "1 failed GPU 0" in shown
    assert "[red]" not in shown
