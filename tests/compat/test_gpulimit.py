"""What gpulimit printed, the drop-in prints, up to spacing; and its server."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.drop_ins import DropIns, old_python
from support.gpulimit_in_process import Completed, InProcess, tasks
from support.machine import Machine
from support.waiting import wait_until

from gpulease.compat.shim_files import SHIMS

CALLS: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "recorded" / "gpulimit.toml").read_text(encoding="utf-8")
)["call"]
WANTED = 57
TOKENS = {"number": r"[\d.]+", "path": r"\S+", "time": r"[\d-]+ [\d:,]+", "text": ".*", "more": r"(?:\n.*)*"}

Run = Callable[[list[str]], Completed]


def plain(text: str) -> str:
    """With one space where there are several, and without empty lines."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return "\n".join(line for line in lines if line)


def matches(pattern: str, printed: str, folder: Path) -> bool:
    parts = re.split(r"<(\w+)>", plain(pattern).replace("\n<more>", "<more>"))
    known = {**TOKENS, "dir": re.escape(str(folder))}
    wanted = "".join(known[part] if number % 2 else re.escape(part) for number, part in enumerate(parts))
    return re.fullmatch(wanted, plain(printed)) is not None


def play(calls: list[dict[str, Any]], run: Run, folder: Path) -> list[str]:
    """The calls one after the other; what differs from the table, and is not said there to differ."""
    wrong = []
    for call in calls:
        if "until" in call:
            wait_until(partial(is_in_state, run, *call["until"].split()))
        done = run([word.replace("<dir>", str(folder)) for word in call["words"]])
        code, stdout = (0, call["prints"]) if "differs" in call else (call["code"], call["stdout"])
        if done.code != code or not matches(stdout, done.out, folder):
            wrong.append(f"{call['words']} -> {done.code}\n{done.out}{done.err}wanted {code}\n{stdout}\n")
    return wrong


def is_in_state(run: Run, id: str, status: str) -> bool:
    """A running one is in it once its process is known: that comes a moment later."""
    shown = run(["gpulimit", "show", id]).out
    begun = status != "running" or re.search(r"task pid: +\d", shown) is not None
    return begun and re.search(rf"status: +{status}\b", shown) is not None


@pytest.fixture(name="in_process")
def drop_in_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    machine = InProcess(tmp_path, 2, monkeypatch)
    yield machine
    machine.close()


def test_the_table_has_as_many_calls_as_were_asked_for() -> None:
    assert sum("differs" not in call for call in CALLS) >= WANTED


def test_every_call_prints_what_gpulimit_printed(in_process: InProcess) -> None:
    calls = [call for call in CALLS if call["words"][0] != "gpulimit_server"]
    wrong = play(calls, lambda words: in_process.gpulimit(*words[1:]), in_process.folder)
    assert wrong == [], f"{len(wrong)} of {len(calls)}:\n" + "\n".join(wrong)


@pytest.fixture(name="drop_ins")
def written_drop_ins(tmp_path: Path) -> Iterator[DropIns]:
    machine = Machine(tmp_path, 2)
    yield DropIns(machine, tmp_path / "shims")
    machine.run("kill", "all")
    machine.run("stop")


def as_commands(drop_ins: DropIns, folder: Path, python: str | None = None) -> Run:
    def run(words: list[str]) -> Completed:
        command = [f"{drop_ins.folder}/bin/{words[0]}", *words[1:]]
        here = os.getcwd()
        os.chdir(folder)
        try:
            done = drop_ins.run(*([python] if python else []), *command)
        finally:
            os.chdir(here)
        return Completed(done.returncode, done.stdout, done.stderr)

    return run


SOME = (
    ["gpulimit"],
    ["gpulimit", "help", "add"],
    ["gpulimit", "set"],
    ["gpulimit", "set", "MAX_RUNNING_TASKS", "-1"],
    ["gpulimit", "status"],
    ["gpulimit", "kill", "99"],
)


@pytest.mark.skipif(old_python() is None, reason="there is no Python 3.6 here")
def test_the_commands_run_with_old_python(drop_ins: DropIns, tmp_path: Path) -> None:
    check_some(as_commands(drop_ins, tmp_path, old_python()), tmp_path)


def test_the_commands_run_by_themselves(drop_ins: DropIns, tmp_path: Path) -> None:
    check_some(as_commands(drop_ins, tmp_path), tmp_path)


def check_some(run: Run, folder: Path) -> None:
    calls = [next(call for call in CALLS if call["words"] == words) for words in SOME]
    assert play(calls, run, folder) == []
    added = run(["gpulimitc", "add", "sh", "-c", "echo $CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES"])
    assert plain(added.out) == "add task(id:1) to queue(len: 1)"
    wait_until(lambda: "complete" in run(["gpulimit", "ls"]).out)
    assert run(["gpulimit", "log", "1"]).out.splitlines()[1:] == ["PCI_BUS_ID 0"]


@pytest.mark.skipif(any(map(os.path.exists, ("/dev/nvidia0", "/dev/kfd"))), reason="there is a GPU here")
def test_an_empty_list_without_a_driver_says_that_there_is_none(drop_ins: DropIns, tmp_path: Path) -> None:
    assert drop_ins.run("gpulimit", "ls").stdout == "\n"
    del drop_ins.environ["GPULEASE_SIMULATION"]
    other = {"GPULEASE_DIR": str(tmp_path / "other")}
    listed = drop_ins.run("gpulimit", "ls", **other)
    drop_ins.machine.run("stop", **other)
    assert listed.returncode == 69
    assert listed.stdout.startswith("[error]: No GPU is visible")


@pytest.mark.long("neighbours")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("python", [sys.executable, old_python()], ids=["this Python", "Python 3.6"])
def test_every_call_as_a_command(drop_ins: DropIns, tmp_path: Path, python: str | None) -> None:
    if python is None:
        pytest.skip("there is no Python 3.6 here")
    calls = [call for call in CALLS if call["words"][0] != "gpulimit_server"]
    assert play(calls, as_commands(drop_ins, tmp_path, python), tmp_path) == []


def test_the_server_stays_in_the_foreground_and_its_tasks_outlive_it(drop_ins: DropIns) -> None:
    call = CALLS[-1]
    drop_ins.run("gpulimit", "add", "sleep", "1000")  # its broker started by itself and is replaced
    server = drop_ins.start("nohup", "gpulimit_server")
    assert server.stdout is not None
    printed = "".join(server.stdout.readline() for _ in plain(call["stdout"]).splitlines())
    assert matches(call["stdout"], printed, Path())
    shown = wait_until(lambda: re.search(r"task pid: +(\d+)", drop_ins.run("gpulimit", "show", "1").stdout))
    server.terminate()
    assert 128 - server.wait(60) == call["code"]
    server.communicate()
    wait_until(lambda: f"task pid: {shown[1]}" in plain(drop_ins.run("gpulimit", "show", "1").stdout))


def test_beside_a_broker_for_everybody_the_server_starts_none_and_ends_with_it(drop_ins: DropIns) -> None:
    machine = drop_ins.machine
    with drop_ins.start(*machine.words("broker", "--shared")) as broker:
        kind = wait_until(lambda: (machine.json("status")["broker"] or {}).get("kind"))
        with drop_ins.start("gpulimit_server") as server:
            assert server.stdout is not None
            assert [server.stdout.readline() for _ in range(3)][1] == "start gpulimit server.\n"
            assert (kind, machine.json("status")["broker"]["pid"]) == ("shared", broker.pid)
            assert server.poll() is None
            broker.terminate()
            assert server.wait(60) == 0


def test_the_server_has_both_of_its_names() -> None:
    """gpulimit's document has one, its package the other."""
    assert (SHIMS / "bin" / "gpulimit-server").read_text() == (SHIMS / "bin" / "gpulimit_server").read_text()


def test_a_second_server_takes_over_and_stopping_the_broker_ends_it(drop_ins: DropIns) -> None:
    first = drop_ins.start("gpulimit_server")
    assert first.stdout is not None
    assert [first.stdout.readline() for _ in range(3)][1] == "start gpulimit server.\n"
    second = drop_ins.start("gpulimit_server")
    assert second.stdout is not None
    assert [second.stdout.readline() for _ in range(3)][1] == "start gpulimit server.\n"
    assert first.wait(60) == 0
    assert drop_ins.machine.run("stop").returncode == 0
    assert second.wait(60) == 0
    first.communicate()
    second.communicate()


def task(id: int, status: str, priority: int = 5) -> tasks.Task:
    return tasks.Task(id, 0, status, None, 0, None, priority, "", "/", ["true"], None)


def test_a_list_is_in_the_order_of_arrival_but_for_what_was_moved() -> None:
    line = [task(4, "waiting", 1), task(5, "waiting"), task(2, "waiting")]
    found = [task(3, "running"), *line, task(1, "complete")]
    assert [one.id for one in tasks.in_order(found)] == [1, 5, 3, 4, 2]
    assert tasks.place_in_line(found, line[2], 0) == 1  # before 5, which is behind 4 in the line
    assert tasks.place_in_line(found, line[1], 4) == 2


def test_the_main_log_keeps_folder_and_command_of_a_removed_task(drop_ins: DropIns) -> None:
    """As gpulimit's does; each line read `(removed)`."""
    drop_ins.run("gpulimit", "add", "sh", "-c", "exit 0")
    wait_until(lambda: "complete" in drop_ins.run("gpulimit", "ls").stdout)
    before = drop_ins.run("gpulimit", "log", "main").stdout
    drop_ins.run("gpulimit", "rm", "1")
    assert drop_ins.run("gpulimit", "log", "main").stdout == before
    assert before.count(f"{os.getcwd()}$ ['sh', '-c', 'exit 0']") == 3
    kept = Path(drop_ins.environ["GPULEASE_DIR"], "gpulimit").iterdir()
    assert [path.stat().st_mode & 0o777 for path in kept] == [0o600]


def test_start_says_what_gpulimit_says_and_nothing_else(drop_ins: DropIns) -> None:
    for _ in range(3):
        drop_ins.run("gpulimit", "add", "sleep", "1000")
    started = drop_ins.run("gpulimit", "start", "3")
    assert (started.stdout, started.stderr) == ("[info]: start task 3 succeed.\n", "")


def test_chinese_is_shown_in_columns_and_without_a_locale(drop_ins: DropIns) -> None:
    drop_ins.run("gpulimit", "add", "echo", "实验一")
    drop_ins.run("gpulimit", "add", "echo", "x")
    done = drop_ins.run("gpulimit", "ls", PYTHONIOENCODING="ascii:strict")
    assert done.returncode == 0, done.stderr
    assert "实验一" in done.stdout
    rows = tasks.table([["任务", "pwd"], ["a", "b"], ["训练é", "c"]]).splitlines()
    assert rows == [" 任务   pwd ", " a      b   ", " 训练é  c   "]


def test_a_removed_task_of_the_main_log_has_no_command() -> None:
    events = [{"what": "added", "id": "J1", "kind": "job", "time": 0.5, "why": "job 1-2"}]
    assert [line.partition(" - ")[2] for line in tasks.main_log(events, [task(1, "complete")])] == [
        "add task(id:1): /$ ['true'])",
        "add task(id:2): (removed))",
    ]
