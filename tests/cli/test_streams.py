"""A closed, full or narrow stream costs a sentence, never a traceback; what is unknown is never handed out as known."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from support.machine import Machine
from support.queue_site import QueueSite


def in_shell(machine: Machine, line: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = line.replace("GPULEASE", shlex.join(machine.words()))
    return subprocess.run(["bash", "-c", command], env={**machine.environ, **more}, capture_output=True, text=True)


@pytest.mark.parametrize("words", ["status", "status --json", "select", "--version", "--help", "doctor"])
def test_a_full_disk_is_said_and_is_a_failure(machine: Machine, words: str) -> None:
    done = in_shell(machine, f"GPULEASE {words} >/dev/full")
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_stdout_is_no_traceback_and_a_closed_stderr_keeps_errors_out_of_stdout(machine: Machine) -> None:
    assert "Traceback" not in in_shell(machine, "GPULEASE >&-").stderr
    done = in_shell(machine, "echo [$(GPULEASE select -n 99 2>&-)]")
    assert done.stdout == "[]\n"


def test_a_command_line_in_another_script_does_not_break_a_latin_terminal(machine: Machine) -> None:
    words = machine.words("simulate", "use", "0", "--", "sh", "-c", "echo ready; read x; :", "日本")
    with subprocess.Popen(
        words, env=machine.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        done = machine.run("status", PYTHONIOENCODING="latin-1")
        process.kill()
    assert done.returncode == 0, done.stderr
    assert "sh -c" in done.stdout


def test_unknown_memory_is_not_selected(machine: Machine) -> None:
    machine.set("gpu.0.memory_used=none")
    done = machine.run("select", "-d", "0")
    assert done.returncode == 1
    assert "(unknown)" in done.stderr
    assert "any" in done.stderr
    assert "does not report" in machine.run("status").stdout


def test_without_uuids_programs_get_indices(machine: Machine) -> None:
    machine.set("fault.middle=nvmlDeviceGetUUID:999")
    done = machine.run("select", "-d", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert done.stdout == "2\n"
    assert "Programs get its index" in machine.run("doctor").stdout


def test_a_fault_of_a_simulated_driver_is_said_to_be_simulated(machine: Machine) -> None:
    machine.set("fault.init=9")
    done = machine.run("status")
    assert "SIMULATED" in done.stderr
    assert "simulate set" in done.stderr


def test_what_was_queued_is_said_where_its_id_cannot_be_written() -> None:
    """Before, only that the output cannot be written: whoever added the job again had it twice."""
    site = QueueSite()
    try:
        site.ensure_broker()
        command = f"{shlex.join(site.words('add', '--hold', '--', 'true'))} >/dev/full"
        done = subprocess.run(["bash", "-c", command], env=site.environ, capture_output=True, text=True)
        assert done.returncode == 1
        assert "queued as 1;" in done.stderr
        assert site.job(1)["state"] == "held"
    finally:
        site.close()
