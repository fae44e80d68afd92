"""`gpulease run` becomes its command, and its lease lives as long as the command."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.site import HOLD, Site, devices_of, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import read_terminal, wait_until

SHOW = "import json, os; print(json.dumps([os.getpid(), dict(os.environ)]))"


def line_length(site: Site) -> int:
    return len(site.status()["line"])


def test_the_command_has_the_same_pid_and_sees_just_its_devices_by_uuid(site: Site) -> None:
    process = site.start("run", "-n", "2", "--", sys.executable, "-c", SHOW)
    out, _ = process.communicate()
    pid, environ = json.loads(out)
    uuids = {str(device["index"]): device["uuid"] for device in site.status()["devices"]}
    assert pid == process.pid
    assert environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environ["CUDA_VISIBLE_DEVICES"] == ",".join(uuids[i] for i in environ["GPULEASE_DEVICES"].split(","))
    assert len(set(environ["CUDA_VISIBLE_DEVICES"].split(","))) == 2
    wait_until(lambda: devices_of(site, "free") == [0, 1, 2, 3])


def test_it_runs_in_the_folder_that_is_named(site: Site, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("#!/bin/sh\npwd; echo $PWD\n")
    (tmp_path / "here").chmod(0o755)
    assert site.run("run", "--cwd", str(tmp_path), "--", "./here").stdout == f"{tmp_path}\n{tmp_path}\n"
    done = site.run("run", "--cwd", f"{tmp_path}/nowhere", "--", "pwd")
    assert (done.returncode, "does not exist" in done.stderr, done.stdout) == (2, True, "")
    shell = site.start("shell", "--cwd", str(tmp_path), environ={"SHELL": "/usr/bin/env"})
    assert f"PWD={tmp_path}\n" in shell.communicate(timeout=30)[0]


def test_the_exit_code_and_the_signal_are_the_commands_own(site: Site) -> None:
    assert site.run("run", "--", "sh", "-c", "exit 7").returncode == 7
    assert site.run("run", "--", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM
    assert site.bash("gpulease run -- sh -c 'kill -KILL $$'; echo $?").stdout == "137\n"


def test_signals_reach_the_command_itself(site: Site) -> None:
    process = site.start(
        "run", "--", "sh", "-c", "trap 'echo caught; exit 5' USR1; echo up; while :; do sleep 0.05; done"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "caught\n"
    assert process.wait(30) == 5


def test_the_command_has_the_terminal(site: Site) -> None:
    ours, theirs = pty.openpty()
    script = "import os, sys; print(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(), input())"
    process = site.start("run", "--", sys.executable, "-c", script, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, b"typed\n")
    assert process.wait(30) == 0
    assert b"True True True typed" in read_terminal(ours, b"True typed")


def test_not_granted_in_time_is_75_and_says_why(site: Site) -> None:
    site.holder("-n", "4")
    now = site.run("run", "--no-wait", "--", "true")
    later = site.run("run", "--wait", "0.3s", "--", "true")
    assert (now.returncode, later.returncode) == (75, 75)
    assert "0 of 4 are free" in now.stderr
    assert "0 of 4 are free" in later.stderr
    assert line_length(site) == 0


def test_what_the_machine_never_has_is_refused_at_once(site: Site) -> None:
    done = site.run("run", "-n", "5", "--", "true")
    assert done.returncode == 1
    assert "this machine has 4" in done.stderr


def test_ctrl_c_while_waiting_leaves_the_line(site: Site) -> None:
    site.holder("-n", "4")
    process = site.start("run", "--", "true")
    wait_until(lambda: line_length(site) == 1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    wait_until(lambda: line_length(site) == 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_client_killed_while_waiting_leaves_the_line(site: Site, number: signal.Signals) -> None:
    holder = site.holder("-n", "4")
    first, second = (site.start("run", "-n", "4", "--", "echo", text) for text in ("first", "second"))
    wait_until(lambda: line_length(site) == 2)
    first.send_signal(number)
    wait_until(lambda: line_length(site) == 1)
    holder.kill()
    assert second.communicate(timeout=30)[0] == "second\n"
    assert first.communicate()[0] == ""


def test_the_waiting_line_tells_place_and_reason_once_for_each_place(site: Site) -> None:
    assert site.run("set", "order", "arrival").returncode == 0
    holder = site.holder("-n", "4")
    first = site.start("run", "--", sys.executable, "-c", HOLD)
    wait_until(lambda: line_length(site) == 1)
    second = site.start("run", "-n", "4", "--", "true")
    assert second.stderr is not None
    assert first.stderr is not None
    assert "waits, number 1 in the queue. It wants one device; 0 of 4 are free" in first.stderr.readline()
    reply = second.stderr.readline()
    assert "waits, number 2 in the queue. It wants 4 devices" in reply
    holder.kill()
    assert first.stdout is not None
    assert first.stdout.readline() == "ready\n"
    assert "number 1 in the queue" in second.stderr.readline()
    first.kill()
    assert second.wait(30) == 0
    assert second.stderr.read() == ""


def test_the_waiting_line_is_cleared_from_a_terminal(site: Site) -> None:
    holder = site.holder("-n", "4")
    ours, theirs = pty.openpty()
    process = site.start("run", "--", "true", stderr=theirs, environ={"TERM": "xterm", "COLUMNS": "200"})
    os.close(theirs)
    shown = read_terminal(ours, b"number 1 in the queue")
    assert b"number 1 in the queue" in shown
    assert b"\n" not in shown
    holder.kill()
    assert process.wait(30) == 0
    assert b"\r\x1b[Kgpulease: got GPU 0 after " in read_terminal(ours, b"no such text")


@pytest.mark.parametrize("command", ["no-such-command", "/etc/passwd", "/", "python train.py"])
def test_a_command_that_cannot_run_is_refused_before_any_wait(site: Site, command: str) -> None:
    site.holder("-n", "4")
    done = site.run("run", "--", command)
    assert done.returncode == 1
    assert command in done.stderr
    assert ("without quotes" in done.stderr) == (" " in command)
    assert "waits" not in done.stderr


def test_a_command_that_fails_to_start_gives_its_lease_back(site: Site) -> None:
    broken = site.folder / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    assert site.run("run", "--", str(broken)).returncode == 1
    wait_until(lambda: devices_of(site, "free") == [0, 1, 2, 3])


def test_a_command_killed_with_9_gives_back_at_once(site: Site) -> None:
    holder = site.holder("-n", "4")
    waiting = site.start("run", "-n", "4", "--", "echo", "mine")
    wait_until(lambda: line_length(site) == 1)
    holder.kill()
    assert waiting.communicate(timeout=30)[0] == "mine\n"


def test_shares_of_one_device_fit_its_memory_and_no_more(site: Site) -> None:
    for _ in range(2):
        site.holder("--mem", "30G", "--devices", "0")
    done = site.run("run", "--mem", "30G", "--devices", "0", "--no-wait", "--", "true")
    assert done.returncode == 75
    assert site.status()["devices"][0]["state"] == "shared"
    whole = site.run("run", "--devices", "0", "--no-wait", "--", "true")
    assert whole.returncode == 75
    assert site.run("run", "--mem", "10G", "--devices", "0", "--no-wait", "--", "true").returncode == 0


def test_shell_holds_until_it_is_left(site: Site) -> None:
    shell = site.start("shell", "-n", "2", environ={"SHELL": "/bin/sh"})
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write("echo $GPULEASE_DEVICES\n")
    shell.stdin.flush()
    assert shell.stdout.readline() == "0,1\n"
    assert devices_of(site, "leased") == [0, 1]
    shell.stdin.close()
    assert shell.wait(30) == 0
    wait_until(lambda: devices_of(site, "leased") == [])


def test_explain_says_device_by_device_why_it_waits(site: Site) -> None:
    site.holder("-n", "3")
    assert site.run("exclude", "3", "--note", "fan broken").returncode == 0
    process = site.start("run", "--", "true")
    wait_until(lambda: line_length(site) == 1)
    id = site.status()["line"][0]["id"]
    reply = site.json("explain", id)
    assert reply["place"] == 1
    assert [row["label"] for row in reply["devices"]] == ["0", "1", "2", "3"]
    assert "fan broken" in reply["devices"][3]["why"]
    table = site.run("explain", id)
    assert table.returncode == 0
    assert "fan broken" in table.stdout
    assert site.run("explain", "L999").returncode == 1
    refused = site.run("run", "--devices", "3", "--no-wait", "--", "true")
    assert (refused.returncode, "3 (excluded: fan broken)" in refused.stderr) == (75, True), refused.stderr
    process.kill()


def test_standard_input_goes_to_the_command(site: Site) -> None:
    words = site.words("run", "--", "cat")
    done = subprocess.run(words, env=site.environ, input="through\n", capture_output=True, text=True, timeout=30)
    assert done.stdout == "through\n"
