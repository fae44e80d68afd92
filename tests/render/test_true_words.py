"""Smaller statements that were wrong: what cannot be delivered, which models are here, who uses a GPU, the locale C."""

from __future__ import annotations

from pathlib import Path

from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here

from gpulease.model.values import Device, Process, Request, Waiting
from gpulease.planner import Line, Policy, plan


def test_an_address_to_which_nothing_can_be_sent_is_told_of_and_the_last_message_is_that_of_this_address(
    queue: QueueSite, tmp_path: Path
) -> None:
    there = tmp_path / "bin"
    there.mkdir()
    (there / "sendmail").write_text("#!/bin/sh\ncat > /dev/null\n")
    (there / "sendmail").chmod(0o755)
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    with_mail = {**home, "PATH": f"{there}:{queue.environ['PATH']}"}
    assert queue.run("notify", "set", "mailto:ada@example.org", **with_mail).stderr == ""
    assert queue.run("notify", "test", **with_mail).returncode == 0
    assert "a test was sent" in queue.run("notify", **with_mail).stdout
    other = queue.run("notify", "set", "tty", **with_mail)
    assert "none was sent yet" in other.stdout
    if not any(Path(folder, "sendmail").exists() for folder in ("/usr/sbin", "/usr/lib")):
        mute = queue.run("notify", "set", "mailto:ada@example.org", **{**home, "PATH": "/nonexistent"})
        assert "no notice will arrive" in mute.stderr


def reasons(request: Request, *devices: Device) -> tuple[str, list[str]]:
    line = Line(Policy())
    line.add(Waiting("w", request, "ada", 1, 0.0))
    decided = plan(devices, [], line, Policy(), 1.0)
    return decided.reason("w").sentence, [verdict.sentence for verdict in decided.explain("w")]


def test_who_asks_for_a_model_that_is_not_here_hears_which_are() -> None:
    cards = [Device(at, f"G{at}", name, memory_used=0) for at, name in enumerate(("A100", "A100", "T4"))]
    reply, _ = reasons(Request(models=("V100", "H100")), *cards)
    assert reply == "There is no V100 or H100 here, but 2 A100, 1 T4."


def test_outside_use_is_told_with_its_user() -> None:
    process = Process(7590, 1, "bob", "python x.py", 1 << 30)
    used = Device(0, "G0", "A100", memory_total=1 << 35, memory_used=1 << 30, processes=(process,))
    assert reasons(Request(), used)[1] == ["Used outside of gpulease by bob (pid 7590)."]


def test_the_locale_c_gets_ascii(queue: QueueSite) -> None:
    done = queue.run("status", LC_ALL="C", COLUMNS="80")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert not queue.run("status", LC_ALL="C.UTF-8", COLUMNS="80").stdout.isascii()
