"""`gpulease simulate`: real commands in a simulated machine, and what is left when they end."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.machine import Machine
from support.needs import ONLY_ROOT, needs_root

from gpulease.errors import NoLibrary, SimulationError, UnknownDevice, UsageError
from gpulease.simulator import activate, folder, keys, library, state

GPULEASE = [sys.executable, "-m", "gpulease"]
DEADLINE = 60


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A surrounding that asks for no simulation, with a temporary directory of its own.

    What its compiler builds is the library that was built for all tests: most are of where it is kept.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPULEASE", "CUDA"))}
    (tmp_path / "temporary").mkdir()
    compiler = tmp_path / "copying-cc"
    compiler.write_text(f'#!/bin/sh\nfor output; do :; done\nexec cp {library.library_path()} "$output"\n')
    compiler.chmod(0o755)
    return {**kept, "TMPDIR": str(tmp_path / "temporary"), "CC": str(compiler)}


def run(command: list[str], environ: dict[str, str], code: int = 0, here: Path | None = None) -> str:
    """What the command prints; with another code than 0 what it says is wrong."""
    ended = subprocess.run(
        command, env=environ, cwd=here, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr if code else ended.stdout


def simulate(environ: dict[str, str], *words: str, code: int = 0) -> str:
    return run([*GPULEASE, "simulate", *words], environ, code)


def left_behind(environ: dict[str, str]) -> list[str]:
    return [name for name in os.listdir(environ["TMPDIR"]) if name.startswith("gpulease-simulated")]


# ---- the command and its end


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -9 $$", 137)]
)
def test_the_exit_code_is_the_commands_own(environ: dict[str, str], script: str, code: int) -> None:
    simulate(environ, "-n", "1", "--", "sh", "-c", script, code=code)
    assert left_behind(environ) == []


@pytest.fixture
def running(environ: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    script = "trap 'echo interrupted; exit 5' INT; trap 'echo ended; exit 6' TERM; echo ready; while :; do read x; done"
    process = subprocess.Popen(
        [*GPULEASE, "simulate", "-n", "1", "--", "sh", "-c", script],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize(("sent", "said", "code"), [(signal.SIGINT, "interrupted", 5), (signal.SIGTERM, "ended", 6)])
def test_a_signal_is_passed_on_and_nothing_is_left(
    environ: dict[str, str], running: subprocess.Popen[str], sent: signal.Signals, said: str, code: int
) -> None:
    assert len(left_behind(environ)) == 1
    running.send_signal(sent)
    output, _ = running.communicate(timeout=DEADLINE, input="\n")
    assert output.strip() == said
    assert running.returncode == code
    assert left_behind(environ) == []


def test_the_command_stays_in_the_foreground_group(environ: dict[str, str]) -> None:
    script = "import os; print(os.getpgrp() == os.getpgid(os.getppid()))"
    assert simulate(environ, "--", sys.executable, "-c", script) == "True\n"


def test_the_terminals_interrupt_reaches_the_command_once(environ: dict[str, str]) -> None:
    script = (
        "import signal; wanted = [signal.SIGINT]; signal.pthread_sigmask(signal.SIG_BLOCK, wanted);"
        "print('ready', flush=True); signal.sigwait(wanted); again = signal.sigtimedwait(wanted, 0.3);"
        "print('once' if again is None else 'twice', flush=True)"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*GPULEASE, "simulate", "-n", "1", "--", sys.executable, "-c", script], environ)
    with open(terminal, "r+b", buffering=0) as stream:
        assert b"ready" in stream.readline()
        stream.write(b"\x03")
        assert b"once" in stream.readline()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0  # before the terminal hangs up


def test_without_a_command_it_is_a_shell(environ: dict[str, str]) -> None:
    ended = subprocess.run(
        [*GPULEASE, "simulate", "-n", "3"],
        env={**environ, "SHELL": "/bin/sh"},
        input="nvidia-smi -L | wc -l; exit 4\n",
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (ended.stdout.strip(), ended.returncode) == ("3", 4)
    assert "SIMULATED" in ended.stderr


def test_a_broker_inside_is_apart_from_the_one_outside(environ: dict[str, str]) -> None:
    script = ["sh", "-c", 'echo "$GPULEASE_DIR" "$GPULEASE_SIMULATION"']
    with TemporaryDirectory(prefix="gpulease-") as short:
        for asked in ({}, {"GPULEASE_DIR": "/somewhere"}):
            for words in (script, [*GPULEASE, "simulate", "--", *script]):
                shown = simulate({**environ, **asked, "TMPDIR": short}, "--", *words).split()
                assert shown[0] == f"{shown[1]}/broker"


def test_in_a_long_folder_the_broker_has_a_short_one_which_ends_with_it(
    environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / ("long" * 20)).mkdir()
    long = {**environ, "TMPDIR": str(tmp_path / ("long" * 20))}
    inside = f'{sys.executable} -m gpulease run -- sh -c "echo on"; echo $GPULEASE_DIR'
    done = simulate(long, "-n", "1", "--", "sh", "-c", inside).splitlines()
    assert done[0] == "on"
    assert done[1].startswith("/tmp/gpulease-simulated-")
    assert not os.path.exists(done[1])


def test_commands_inside_never_reach_the_broker_of_a_given_folder(machine: Machine, tmp_path: Path) -> None:
    """It leased what that broker serves, and read its settings."""
    config = tmp_path / "config.toml"
    config.write_text("keep-ended = 123457\n")
    outside = {"GPULEASE_CONFIG": str(config)}
    try:
        held = machine.run("get", "--for", "1h", **outside)
        assert held.returncode == 0, held.stderr
        shown = 'gpulease get --for 1h -n 1 && gpulease ls --json; gpulease set keep-ended; echo "[$GPULEASE_LEASE]"; '
        inside = ["simulate", "-n", "1", "--", "sh", "-c", f"{shown}echo $CUDA_VISIBLE_DEVICES; gpulease stop"]
        done = machine.run("run", "--", *machine.words(*inside), **outside, PATH=with_gpulease(tmp_path))
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("0\n")
        assert "123457" not in done.stdout
        assert "\n[]\n\n" in done.stdout
        assert [lease["id"] for lease in machine.json("status")["leases"]] == ["L1"]
        assert [event["id"] for event in machine.json("events")["events"]].count("L2") == 2
        assert "L3" not in machine.run("events").stdout
    finally:
        machine.run("stop")


def with_gpulease(folder: Path) -> str:
    """A PATH on which `gpulease` is this one."""
    (folder / "gpulease").write_text(f'#!/bin/sh\nexec {sys.executable} -m gpulease "$@"\n')
    (folder / "gpulease").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


# ---- changing and occupying


def inside(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The surrounding of a machine that outlives one command."""
    return {**environ, "GPULEASE_SIMULATE": "2:mixed", "GPULEASE_DIR": str(tmp_path / "base")}


def test_set_and_show(environ: dict[str, str], tmp_path: Path) -> None:
    environ = inside(environ, tmp_path)
    simulate(environ, "set", "gpu.0.utilization=90", "gpu.1.memory_used=2G", "gpu.1.power=99W")
    shown = simulate(environ, "show")
    assert "SIMULATED" in shown
    assert {"gpu.0.utilization=90", f"gpu.1.memory_used={2 << 30}", "gpu.1.power=99000"} <= set(shown.splitlines())
    document = json.loads(simulate(environ, "show", "--json"))
    assert document["machine"]["gpu.0.utilization"] == "90"
    assert document["directory"] == str(tmp_path / "base" / "simulated-2-mixed")
    assert os.stat(document["directory"]).st_mode & 0o777 == 0o700


def test_use_becomes_the_command_with_the_same_pid(environ: dict[str, str], tmp_path: Path) -> None:
    environ = inside(environ, tmp_path)
    process = subprocess.Popen(
        [*GPULEASE, "simulate", "use", "0,1", "--memory", "3G", "--", "sh", "-c", "echo $$; read x; exit 9"],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert int(process.stdout.readline()) == process.pid
    uses = json.loads(simulate(environ, "show", "--json"))["processes"]
    assert [(use["pid"], use["gpu"], use["memory"]) for use in uses] == [
        (process.pid, 0, 3 << 30),
        (process.pid, 1, 3 << 30),
    ]
    process.communicate("\n", timeout=DEADLINE)
    assert process.returncode == 9
    assert json.loads(simulate(environ, "show", "--json"))["processes"] == []


def test_use_takes_the_devices_of_cuda_visible_devices(environ: dict[str, str], tmp_path: Path) -> None:
    environ = inside(environ, tmp_path)
    machine = json.loads(simulate(environ, "show", "--json"))["machine"]
    for visible in ("1", machine["gpu.1.uuid"], machine["gpu.1.uuid"][:10]):
        shown = simulate(
            {**environ, "CUDA_VISIBLE_DEVICES": visible}, "use", "--graphics", "--", *GPULEASE, "simulate", "show"
        )
        assert f"uses {1 << 30} bytes of 1\n" in shown


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("-n", "0", "--", "true"), 2, "1 to 64"),
        (("-n", "65", "--", "true"), 2, "1 to 64"),
        (("-n", "few", "--", "true"), 2, "--help"),
        (("--profile", "h100", "--", "true"), 2, "a100, rtx4090, mixed"),
        (("-n", "9" * 5000, "--", "true"), 2, "number"),
        (("--set", "gpu.0.colour=red", "--", "true"), 2, "simulate show"),
        (("--set", f"gpu.0.name={'x' * 5000}", "--", "true"), 2, "90 bytes"),
        (("--set", f"gpu.0.{'x' * 5000}=1", "--", "true"), 2, "no key"),
        (("--set", "x" * 5000, "--", "true"), 2, "KEY=VALUE"),
        (("--profile", "x" * 5000, "--", "true"), 2, "no profile"),
        (("--", "no-such-command-here"), 1, "does not exist"),
        (("set", "gpu.0.lost=1"), 1, "no simulated machine"),
        (("show",), 1, "GPULEASE_SIMULATE=4"),
        (("use", "0"), 2, "no command"),
        (("use", "0", "--memory", "lots", "--", "true"), 2, "6G"),
        (("nonsense",), 2, "--help"),
    ],
)
def test_wrong_use_says_what_to_do(environ: dict[str, str], words: tuple[str, ...], code: int, said: str) -> None:
    reply = simulate(environ, *words, code=code)
    assert said in reply
    assert max(map(len, reply.splitlines())) < 160
    assert left_behind(environ) == []


@pytest.mark.parametrize(
    ("assignment", "error"),
    [
        ("gpu.0.utilization=101", UsageError),
        ("gpu.0.utilization=-1", UsageError),
        ("gpu.0.utilization=many", UsageError),
        ("gpu.0.memory_total=big", UsageError),
        ("gpu.0.mig=8", UsageError),
        ("gpu.0.lost=yes", UsageError),
        ("gpu.0.uuid=1", UsageError),
        ("gpu.0.performance_state=P16", UsageError),
        ("gpu.0.name=two\nlines", UsageError),
        ("gpu.0.nothing=1", UsageError),
        ("gpu_count=3", UsageError),
        ("utilization", UsageError),
        ("gpu.2.utilization=1", UnknownDevice),
        ("fault.middle=nvmlInit", UsageError),
        ("fault.middle=nvmlInit:٣", UsageError),
        ("gpu.٣.utilization=9", UsageError),
        ("gpu.00.utilization=9", UsageError),
        ("gpu.0.utilization=٣", UsageError),
        ("gpu.0.utilization=", UsageError),
        ("gpu.0.name=", UsageError),
        ("gpu.0.name=\x1b[31mred", UsageError),
        ("gpu.0.name=two\u2028lines", UsageError),
        ("gpu.0.name=\udcff", UsageError),
        (f"gpu.0.name={'ü' * 46}", UsageError),
        ("gpu.0.pci_bus_id=0000:0f:00.1", UsageError),
    ],
)
def test_a_value_that_makes_no_sense_changes_nothing(tmp_path: Path, assignment: str, error: type[Exception]) -> None:
    state.create(tmp_path, 2)
    before = state.read_machine(tmp_path)
    with pytest.raises(error):
        state.set_values(tmp_path, ["gpu.0.temperature=50", assignment])
    assert state.read_machine(tmp_path) == before


def test_two_gpus_do_not_share_a_uuid(tmp_path: Path) -> None:
    state.create(tmp_path, 2)
    with pytest.raises(UsageError, match="UUID"):
        state.set_values(tmp_path, [f"gpu.0.uuid=GPU-{state.read_machine(tmp_path)['gpu.1.uuid'][4:].upper()}"])


def test_every_key_that_can_be_set_is_shown(tmp_path: Path) -> None:
    state.create(tmp_path, 1)
    known = {*keys.MACHINE_KEYS, *(f"gpu.0.{key}" for key in keys.GPU_KEYS), "gpu_count", "profile"}
    assert set(state.read_machine(tmp_path)) == known


# ---- which devices


def test_a_command_needs_no_dashes_before_it(environ: dict[str, str], tmp_path: Path) -> None:
    assert simulate(environ, "-n", "2", "sh", "-c", 'echo "$0" "$@"', "a", "--", "-n") == "a -- -n\n"
    environ = inside(environ, tmp_path)
    assert simulate(environ, "use", "0", "echo", "hi") == "hi\n"
    assert simulate(environ, "use", "0", "--memory", "2G", "echo", "--memory", "3G") == "--memory 3G\n"
    assert simulate({**environ, "CUDA_VISIBLE_DEVICES": "1"}, "use", "echo", "hi") == "hi\n"
    assert "no simulated device 'echo'" in simulate(environ, "use", "echo", "--", "hi", code=2)


def test_a_command_that_is_named_like_an_action_stands_behind_dashes(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "show").write_text("#!/bin/sh\necho mine\n")
    (tmp_path / "show").chmod(0o755)
    environ["PATH"] = f"{tmp_path}:{environ['PATH']}"
    assert simulate(environ, "-n", "1", "--", "show") == "mine\n"


def test_a_device_is_named_by_its_uuid_or_the_beginning_of_it(environ: dict[str, str], tmp_path: Path) -> None:
    environ = inside(environ, tmp_path)
    simulate(environ, "set", "gpu.0.mig=2")
    uuid = json.loads(simulate(environ, "show", "--json"))["machine"]["gpu.1.uuid"]
    for named in (uuid, uuid[:10], uuid.lower(), f"1,{uuid}"):
        assert f"uses {1 << 30} bytes of 1\n" in simulate(environ, "use", named, "--", *GPULEASE, "simulate", "show")
    assert "beginning of 2 UUIDs" in simulate(environ, "use", "GPU-", "--", "true", code=2)
    assert "no simulated device" in simulate(environ, "use", "GPU-nobody", "--", "true", code=2)


def test_a_gpu_in_instances_is_not_used_whole(environ: dict[str, str], tmp_path: Path) -> None:
    environ = inside(environ, tmp_path)
    simulate(environ, "set", "gpu.0.mig=7")
    assert "0:0 to 0:6" in simulate(environ, "use", "0", "--", "true", code=2)
    simulate(environ, "use", "0:6", "--", "true")


def test_instances_do_not_change_under_a_process(tmp_path: Path) -> None:
    state.create(tmp_path, 2)
    state.occupy(tmp_path, "0", 1 << 30)
    with pytest.raises(UsageError, match=str(os.getpid())):
        state.set_values(tmp_path, ["gpu.0.mig=3"])
    state.set_values(tmp_path, ["gpu.0.mig=none", "gpu.1.mig=3"])


def test_a_process_uses_no_more_memory_than_there_is(environ: dict[str, str], tmp_path: Path) -> None:
    environ = inside(environ, tmp_path)
    assert "has 80.0G" in simulate(environ, "use", "0", "--memory", "900G", "--", "true", code=2)
    simulate(environ, "set", "gpu.0.mig=2")
    assert "has 40.0G" in simulate(environ, "use", "0:1", "--memory", "41G", "--", "true", code=2)
    simulate(environ, "set", "gpu.0.memory_total=none")
    simulate(environ, "use", "0:1", "--memory", "900G", "--", "true")


# ---- names beyond ASCII


def test_any_name_is_shown_on_any_output(environ: dict[str, str]) -> None:
    shown = ("-n", "1", "--set", "gpu.0.name=Grün", "--", "sh", "-c", 'nvidia-smi -L; "$@"', "sh")
    for encoding, name in (("ascii", "Gr?n"), ("utf-8", "Grün")):
        reply = simulate({**environ, "PYTHONIOENCODING": encoding}, *shown, *GPULEASE, "simulate", "show")
        assert f"GPU 0: {name} (" in reply
        assert f"gpu.0.name={name}\n" in reply


def test_bytes_that_are_no_text_are_wrong_usage(environ: dict[str, str], tmp_path: Path) -> None:
    environ = inside(environ, tmp_path)
    simulate(environ, "set", os.fsdecode(b"gpu.0.name=\xff"), code=2)


# ---- several at once


def test_two_that_make_a_machine_at_once_make_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: state.create(tmp_path / "machine", 4), range(8)))
    assert made.count(True) == 1


def test_no_change_is_lost_when_many_change_at_once(tmp_path: Path) -> None:
    state.create(tmp_path, 16)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda gpu: state.set_values(tmp_path, [f"gpu.{gpu}.utilization={gpu}"]), range(16)))
    machine = state.read_machine(tmp_path)
    assert [machine[f"gpu.{gpu}.utilization"] for gpu in range(16)] == [str(gpu) for gpu in range(16)]


def test_a_shared_machine_lets_everybody_occupy_and_nobody_else_change(tmp_path: Path) -> None:
    state.create(tmp_path / "own", 1)
    state.create(tmp_path / "shared", 1, shared=True)
    modes = [os.stat(tmp_path / name).st_mode & 0o7777 for name in ("own/processes", "shared/processes", "shared")]
    assert modes == [0o700, 0o1777, 0o755]


# ---- what asks for simulation


@pytest.mark.parametrize("value", ["x", "-1", "65", "4:nothing", "1.5", ":a100", "٣"])
def test_a_wrong_number_of_gpus_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(UsageError):
        activate.directory_from_environment({"GPULEASE_SIMULATE": value, "GPULEASE_DIR": str(tmp_path)})


def test_a_state_directory_of_somebody_else_is_no_traceback(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = {**environ, "GPULEASE_SIMULATE": "2"}
    reply = run([*GPULEASE, "simulate", "show"], {**environ, "GPULEASE_DIR": str(tmp_path / "file")}, code=1)
    assert "Set GPULEASE_DIR to a folder that can be written to." in reply
    environ.pop("XDG_RUNTIME_DIR", None)
    reply = run([*GPULEASE, "simulate", "show"], {**environ, "HOME": str(tmp_path / "file")}, code=1)
    assert "Set GPULEASE_DIR to a folder that can be written to." in reply


@needs_root
def test_a_state_directory_that_may_not_be_entered_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    environ = {"GPULEASE_SIMULATE": "2", "GPULEASE_DIR": str(tmp_path / "closed" / "state")}
    (tmp_path / "closed").mkdir(mode=0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(SimulationError, match="Set GPULEASE_DIR"):
            activate.directory_from_environment(environ)
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"gpu_count=many\n"])
@pytest.mark.parametrize("words", [["status"], ["simulate", "show"], ["simulate", "set", "gpu.0.lost=1"]])
def test_a_machine_that_is_gone_or_damaged_is_said_to_be_simulated(
    environ: dict[str, str], tmp_path: Path, content: bytes | None, words: list[str]
) -> None:
    (tmp_path / "machine").mkdir()
    if content is not None:
        (tmp_path / "machine" / "machine").write_bytes(content)
    reply = run([*GPULEASE, *words], {**environ, "GPULEASE_SIMULATION": str(tmp_path / "machine")}, code=1)
    for part in ("simulated machine", str(tmp_path / "machine"), "unsetting GPULEASE_SIMULATION"):
        assert part in reply


def test_a_damaged_machine_of_an_environment_is_repaired_by_removing_it(
    environ: dict[str, str], tmp_path: Path
) -> None:
    environ = inside(environ, tmp_path)
    folder = Path(json.loads(simulate(environ, "show", "--json"))["directory"])
    (folder / "machine").write_text("")
    assert f"Remove the folder {folder}" in simulate(environ, "show", code=1)


def test_a_relative_folder_is_that_of_where_one_stands(environ: dict[str, str], tmp_path: Path) -> None:
    state.create(tmp_path / "machine", 2)
    environ = {**environ, "GPULEASE_SIMULATION": "machine"}
    assert f"in {tmp_path}/machine\n" in run([*GPULEASE, "simulate", "show"], environ, here=tmp_path)
    script = ["sh", "-c", 'cd /; "$@"', "sh", *GPULEASE, "simulate", "show"]
    reply = run([*GPULEASE, "simulate", "-n", "1", "--", *script], {**environ, "TMPDIR": "."}, here=tmp_path)
    assert f"in {tmp_path}/gpulease-simulated-" in reply


@pytest.mark.parametrize("environ", [{}, {"GPULEASE_SIMULATE": ""}, {"GPULEASE_SIMULATE": "0"}])
def test_nothing_simulates_unless_asked(environ: dict[str, str]) -> None:
    assert activate.directory_from_environment(environ) is None


def test_the_machine_of_an_environment_stays(tmp_path: Path) -> None:
    environ = {"GPULEASE_SIMULATE": "3", "XDG_RUNTIME_DIR": str(tmp_path)}
    directory = activate.directory_from_environment(environ)
    assert directory == tmp_path / "gpulease" / "simulated-3-a100"
    state.set_values(directory, ["gpu.2.fan=11"])
    assert activate.directory_from_environment(environ) == directory
    assert state.read_machine(directory)["gpu.2.fan"] == "11"


# ---- building the library


def test_many_that_build_at_once_get_one_whole_library(environ: dict[str, str], tmp_path: Path) -> None:
    environ = {**environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "CC": os.environ.get("CC", "")}
    with ThreadPoolExecutor(3) as pool:
        built = set(pool.map(lambda _: library.library_path(environ), range(3)))
    assert len(built) == 1
    assert len(os.listdir(tmp_path / "cache" / "gpulease")) == 1


def test_a_home_that_cannot_be_written_is_no_obstacle(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    built = library.library_path({**environ, "XDG_CACHE_HOME": str(tmp_path / "file")})
    assert built.is_relative_to(environ["TMPDIR"])


@pytest.mark.parametrize("words", ["status", "run -- true"])
def test_a_compiler_may_take_longer_than_a_driver(environ: dict[str, str], tmp_path: Path, words: str) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\nsleep 3\nexec {environ["CC"]} "$@"\n')
    compiler.chmod(0o755)
    with TemporaryDirectory(prefix="gpulease-") as short:  # a socket's path is short
        places = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path), "GPULEASE_DIR": short}
        environ = {**environ, **places, "CC": str(compiler), "GPULEASE_PROBE_DEADLINE": "2", "GPULEASE_SIMULATE": "2"}
        run([*GPULEASE, *words.split()], environ)
        subprocess.run([*GPULEASE, "stop"], env=environ, capture_output=True, timeout=DEADLINE)


@pytest.fixture
def no_compiler(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Neither a compiler nor a library that was built earlier; a shell can still be found."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    places = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path), "GPULEASE_DIR": str(tmp_path / "dir")}
    bare = {name: value for name, value in environ.items() if name != "LD_LIBRARY_PATH"}
    return {**bare, **places, "PATH": str(tmp_path / "bin"), "CC": "none"}  # so that the ziglang package is not used


def names_what_to_install(told: str) -> None:
    assert "there is no C compiler" in told
    assert "apt-get install gcc libc6-dev" in told
    assert "dnf install gcc" in told


@pytest.mark.parametrize("words", [("simulate", "-n", "2", "--", "sh", "-c", "echo ran"), ("demo",)])
def test_without_a_compiler_nothing_is_run_and_the_error_names_what_to_install(
    no_compiler: dict[str, str], words: tuple[str, ...]
) -> None:
    ended = subprocess.run([*GPULEASE, *words], env=no_compiler, capture_output=True, text=True, timeout=DEADLINE)
    assert (ended.returncode, ended.stdout) == (69, "")
    assert len(ended.stderr.splitlines()) == 2
    names_what_to_install(ended.stderr)
    assert left_behind(no_compiler) == []


def test_without_a_compiler_the_variable_gives_the_same_error_from_probe_and_broker(
    no_compiler: dict[str, str],
) -> None:
    with TemporaryDirectory(prefix="gpulease-") as short:  # a socket's path is short
        environ = {**no_compiler, "GPULEASE_SIMULATE": "2", "GPULEASE_DIR": short}
        for verb in ("status", "select", "get", "status"):  # `get` starts a broker, which the next one asks
            names_what_to_install(run([*GPULEASE, verb], environ, code=69))
        run([*GPULEASE, "stop"], environ)


def test_doctor_says_that_there_is_no_compiler(no_compiler: dict[str, str]) -> None:
    def simulation(environ: dict[str, str]) -> dict[str, str]:
        done = subprocess.run([*GPULEASE, "doctor", "--json"], env=environ, capture_output=True, timeout=DEADLINE)
        (found,) = [one for one in json.loads(done.stdout)["findings"] if one["subject"] == "simulation"]
        return dict(found)

    for asked, level in (({}, "ok"), ({"GPULEASE_SIMULATE": "2"}, "error")):
        found = simulation({**no_compiler, **asked})
        assert found["level"] == level
        names_what_to_install(f"{found['text']} {found['next_step']}")


def test_a_library_that_was_built_earlier_needs_no_compiler(
    environ: dict[str, str], no_compiler: dict[str, str]
) -> None:
    library.library_path({**environ, "XDG_CACHE_HOME": no_compiler["XDG_CACHE_HOME"]})
    assert simulate(no_compiler, "-n", "2", "--", "sh", "-c", "nvidia-smi -L").count("GPU ") == 2


def test_a_compiler_that_fails_is_named_with_what_it_said(no_compiler: dict[str, str], tmp_path: Path) -> None:
    compiler = tmp_path / "bin" / "cc"
    compiler.write_text("#!/bin/sh\necho 'In file x:' >&2\necho 'x.c:1: fatal error: stdio.h: not there' >&2\nexit 1\n")
    compiler.chmod(0o755)
    reply = simulate(no_compiler, "-n", "1", "--", "sh", "-c", "echo ran", code=69)
    assert f"{compiler} failed: x.c:1: fatal error: stdio.h: not there." in reply
    assert "apt-get install libc6-dev" in reply


def test_a_library_that_cannot_be_loaded_is_an_error_with_a_way_out(environ: dict[str, str], tmp_path: Path) -> None:
    environ = {**environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "GPULEASE_SIMULATE": "1", "HOME": str(tmp_path)}
    built = library.library_path(environ)
    built.write_bytes(b"damaged")
    with TemporaryDirectory(prefix="gpulease-") as short:
        reply = run([*GPULEASE, "select"], {**environ, "GPULEASE_DIR": short}, code=69)
    assert f"Remove {built.parent}" in reply


# ---- where the library is kept


@pytest.fixture
def no_home(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Where only the directory under /tmp is left to keep a library in."""
    (tmp_path / "file").write_text("")
    return {**environ, "XDG_CACHE_HOME": str(tmp_path / "file")}


def fallback(environ: dict[str, str]) -> Path:
    return Path(environ["TMPDIR"], f"gpulease-{os.getuid()}")


def test_the_directory_under_tmp_is_private(no_home: dict[str, str]) -> None:
    before = os.umask(0)
    try:
        built = library.library_path(no_home)
    finally:
        os.umask(before)
    assert built.parent.parent == fallback(no_home)
    assert [os.stat(path).st_mode & 0o777 for path in (fallback(no_home), built.parent, built)] == [0o700, 0o700, 0o755]


def make_open(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


def make_link(place: Path) -> None:
    place.with_name("elsewhere").mkdir(mode=0o700)
    place.symlink_to(place.with_name("elsewhere"))


def make_foreign(place: Path) -> None:
    if os.getuid() != 0:
        pytest.skip(ONLY_ROOT)
    place.mkdir(mode=0o700)
    os.chown(place, 65534, 65534)


@pytest.mark.parametrize("make", [make_open, make_link, make_foreign])
def test_a_directory_that_others_prepared_is_not_used(no_home: dict[str, str], make: Callable[[Path], None]) -> None:
    planted = library.library_path(no_home)
    kept = fallback(no_home).rename(fallback(no_home).with_name("kept"))
    make(fallback(no_home))
    (kept / planted.parent.name).rename(fallback(no_home) / planted.parent.name)
    with pytest.raises(NoLibrary, match="only you can change"):
        library.library_path(no_home)
    beside = library.library_path(no_home, Path(no_home["TMPDIR"], "machine"))
    assert fallback(no_home) not in beside.parents


def test_a_library_is_not_used_from_below_a_directory_that_others_can_change(
    environ: dict[str, str], tmp_path: Path
) -> None:
    cache = tmp_path / "above" / "cache"
    built = library.library_path({**environ, "XDG_CACHE_HOME": str(cache)})
    assert built.is_relative_to(cache)
    (tmp_path / "above").chmod(0o777)
    found = library.library_path({**environ, "XDG_CACHE_HOME": str(cache)})
    assert not found.is_relative_to(cache)


def test_a_library_that_others_can_write_is_built_again(environ: dict[str, str], tmp_path: Path) -> None:
    environ = {**environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    built = library.library_path(environ)
    built.write_bytes(b"planted")
    built.chmod(0o777)
    assert library.library_path(environ) == built
    assert built.read_bytes()[:4] == b"\x7fELF"


def test_what_a_killed_builder_left_is_removed_by_the_next(environ: dict[str, str], tmp_path: Path) -> None:
    started, opened = tmp_path / "started", tmp_path / "opened"
    os.mkfifo(started)
    os.mkfifo(opened)
    compiler = tmp_path / "slow-cc"
    compiler.write_text(f"#!/bin/sh\necho started >{started}\nread x <{opened}\n")
    compiler.chmod(0o755)
    environ = {**environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    builder = subprocess.Popen([*GPULEASE, "simulate", "-n", "1", "--", "true"], env={**environ, "CC": str(compiler)})
    started.read_text()
    builder.kill()
    builder.wait()
    left = os.listdir(tmp_path / "cache" / "gpulease")
    assert [name[:10] for name in left] == [".building-"]
    opened.write_text("go\n")
    simulate(environ, "-n", "1", "--", "true")
    assert not any(name.startswith(".") for name in os.listdir(tmp_path / "cache" / "gpulease"))


def test_a_colon_breaks_no_path(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    script = 'nvidia-smi -L; echo "$GPULEASE_SIMULATION:$LD_LIBRARY_PATH"'
    for name in ("TMPDIR", "XDG_CACHE_HOME"):
        reply = simulate({**environ, name: str(tmp_path / "a:b")}, "-n", "1", "--", "sh", "-c", script)
        assert reply.startswith("GPU 0: ")
        assert "a:b" not in reply


# ---- where the machine is kept


def test_a_machine_is_not_made_where_others_could_exchange_it(environ: dict[str, str]) -> None:
    Path(environ["TMPDIR"]).chmod(0o777)
    reply = simulate(environ, "-n", "1", "--", "sh", "-c", 'echo "$GPULEASE_SIMULATION"')
    assert not reply.startswith(environ["TMPDIR"])


def test_the_next_machine_removes_what_a_killed_one_left(environ: dict[str, str]) -> None:
    command = [*GPULEASE, "simulate", "-n", "1", "--", "sh", "-c", "echo ready; read x"]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        (alive,) = left_behind(environ)
        simulate(environ, "-n", "1", "--", "true")
        assert left_behind(environ) == [alive]
        process.kill()
        process.wait()
        assert left_behind(environ) == [alive]
        simulate(environ, "-n", "1", "--", "true")
        assert left_behind(environ) == []


def test_only_a_folder_that_was_signed_is_ever_removed(environ: dict[str, str]) -> None:
    Path(environ["TMPDIR"], f"{folder.PREFIX}of-somebody").mkdir()
    simulate(environ, "-n", "1", "--", "true")
    assert left_behind(environ) == [f"{folder.PREFIX}of-somebody"]


def test_no_place_to_write_is_an_error_with_a_way_out(environ: dict[str, str]) -> None:
    script = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *GPULEASE, "simulate", "-n", "1", "--", "true"]
    assert "Set TMPDIR" in run(script, environ, code=1)


# ---- help


def test_the_help_fits_eighty_columns(environ: dict[str, str]) -> None:
    for words in ((), ("set",), ("show",), ("use",)):
        reply = simulate({**environ, "COLUMNS": "80"}, *words, "--help")
        assert max(map(len, reply.splitlines())) <= 80


def test_the_slow_driver_of_the_how_to_keeps_within_the_deadline(environ: dict[str, str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "simulate.md").read_text()
    (slow,) = re.findall(r"fault\.slow=\d+", page)
    reply = simulate(environ, "-n", "4", "--set", slow, "--", *GPULEASE, "status")
    assert "4 SIMULATED GPUs, 4 free" in reply


# ---- nvidia-smi


def smi(environ: dict[str, str], *words: str, code: int = 0) -> str:
    machine = ("-n", "3", "--profile", "mixed", "--set", "gpu.0.mig=2", "--set", "gpu.1.utilization=42", "--")
    occupying = (*GPULEASE, "simulate", "use", "1", "--memory", "2G", "--")
    ended = subprocess.run(
        [*GPULEASE, "simulate", *machine, *occupying, "sh", "-c", 'nvidia-smi "$@"; exit $?', "sh", *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout


def test_nvidia_smi_answers_in_csv(environ: dict[str, str]) -> None:
    asked = "--query-gpu=index,gpu_bus_id,name,memory.used,utilization.gpu,fan.speed"
    assert smi(environ, "--format=csv,noheader", asked).splitlines() == [
        "0, 00000000:07:00.0, NVIDIA A100-SXM4-80GB, 0 MiB, [N/A], [N/A]",
        "1, 00000000:0F:00.0, NVIDIA GeForce RTX 4090, 2048 MiB, 42 %, 30 %",
        "2, 00000000:47:00.0, Tesla T4, 0 MiB, 0 %, [N/A]",
    ]
    rows = smi(environ, "--query-compute-apps=pid,gpu_bus_id,used_memory", "--format=csv,nounits").splitlines()
    assert rows[0] == "pid, gpu_bus_id, used_memory"
    assert rows[1].split(", ")[1:] == ["00000000:0F:00.0", "2048"]
    assert smi(environ, "-i", "2", "--query-gpu=index", "--format=csv").splitlines() == ["index", "2"]


def test_nvidia_smi_answers_people(environ: dict[str, str]) -> None:
    assert "SIMULATED" in smi(environ)
    listed = smi(environ, "-L")
    assert (listed.count("GPU "), listed.count("MIG ")) == (3, 2)
    everything = smi(environ, "-q")
    for line in ("Attached GPUs", "Display Mode", "Display Active"):
        assert line in everything
    assert everything.count("Product Name") == 3
    assert "GPU Current Temp                  : 31 C\n" in everything
    assert smi(environ, "-i", "0", "--query-gpu=temperature.gpu", "--format=csv,noheader") == "31\n"


def test_nvidia_smi_refuses_what_it_does_not_know(environ: dict[str, str]) -> None:
    assert 'Field "nothing" is not a valid field' in smi(environ, "--query-gpu=nothing", "--format=csv", code=2)
    smi(environ, "--query-gpu=index", code=2)
    assert "No devices were found" in smi(environ, "-i", "9", code=6)
