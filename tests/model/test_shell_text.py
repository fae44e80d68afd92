"""Which shells only ask: those that end with the command that they run, and do not read its output themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpulease.model.shell_text import only_command, text_or_script


@pytest.mark.parametrize(
    "text",
    [
        "GPU.py --get",
        "/opt/bin/GPU.py --get 2>/dev/null",
        "GPU.py --get 2>&1 | tail -n 1 | tr -d ' '",
        "cd /work && GPU.py --get",
        "export A=1; B=2 GPU.py --get;",
        "#!/bin/sh\n# ours (train later)\nset -e\nexec GPU.py --get \\\n  --force  # all\n\n",
        "GPU.py --get &",
        "GPU.py --get>file",
        "'/opt/bin/GPU.py' --get",
    ],
)
def test_a_text_that_ends_with_the_command_only_runs_that(text: str) -> None:
    assert str(only_command(text)).rpartition("/")[2] == "GPU.py"


@pytest.mark.parametrize(
    "text",
    [
        "GPU.py --get; train",
        "GPU.py --get; true",
        "GPU.py --get; read",
        "GPU.py --get | cat; cat",
        "X=$(GPU.py --get)",
        "X=`GPU.py --get`",
        "read X < <(GPU.py --get)",
        "if GPU.py --get; then echo yes; fi",
        "train & GPU.py --get",
        "X=$(GPU.py --get); CUDA_VISIBLE_DEVICES=$X train",
        "GPU.py --get | xargs train",
        "GPU.py --get; sleep 60",
        "train $(GPU.py --get)",
        "task 1",  # a function, exported or of a file: what else it does is not in sight
        ". ./job.sh",
        "eval $COMMAND",
        "GPU.py --get > train.log; train",
        "",
        "echo",
    ],
)
def test_a_text_that_goes_on_asks_for_itself(text: str) -> None:
    assert only_command(text) != "GPU.py"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["sh", "-c", "x y"], ("x y", None)),
        (["/bin/bash", "-lc", "x"], ("x", None)),
        (["bash", "-o", "pipefail", "--norc", "-e", "-c", "x", "name"], ("x", None)),
        (["-bash"], (None, None)),
        (["bash", "-e", "job.sh", "-c"], (None, "job.sh")),
        (["python3", "-c", "x"], (None, None)),
        ([], (None, None)),
    ],
)
def test_a_shell_is_told_a_text_or_a_file(words: list[str], found: tuple[str | None, str | None]) -> None:
    assert text_or_script(words) == found


WHO = "#!{python}\nimport os\nfrom gpulease.system.identity import requesting_process\n\
print(requesting_process(os.getpid(), read_scripts=True))\n"


@pytest.fixture
def command(tmp_path: Path) -> str:
    """A command of another name than ours that says who asked."""
    path = tmp_path / "other-name"
    path.write_text(WHO.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("text", ["{} | cat", "cd / && {}", "A=1 {} 2>/dev/null | tail -n 1"])
def test_a_program_that_asks_through_a_shell_is_found_whatever_the_command_is_called(command: str, text: str) -> None:
    line = text.format(command)
    assert subprocess.check_output(line, shell=True, text=True, timeout=60).strip() == str(os.getpid())
    assert os.popen(line).read().strip() == str(os.getpid())


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_script_that_only_asks_is_passed_by(command: str, shell: str, tmp_path: Path) -> None:
    script = tmp_path / "my-gpu"
    script.write_text(f'#!/bin/{shell}\n# where it is called from matters not\nset -e\n{command} "$@" | tail -n 1\n')
    script.chmod(0o755)
    assert subprocess.check_output([script], text=True, timeout=60).strip() == str(os.getpid())
    assert subprocess.check_output([shell, "my-gpu"], text=True, timeout=60, cwd=tmp_path).strip() == str(os.getpid())


def test_a_script_that_goes_on_asks_for_itself(command: str, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"echo $$\n{command}\nsleep 0\n")
    pid, requester = subprocess.check_output(["sh", str(script)], text=True, timeout=60).split()
    assert requester == pid


def test_an_exported_function_asks_for_its_shell(command: str) -> None:
    line = f"task() {{ echo $$; {command}; sleep 0; }}; export -f task; bash -c task; true"
    pid, requester = subprocess.check_output(["bash", "-c", line], text=True, timeout=60).split()
    assert requester == pid


def test_a_command_that_became_another_is_still_the_one_that_was_run(command: str, tmp_path: Path) -> None:
    script = tmp_path / "my-gpu"
    script.write_text(f"#!/bin/sh\nexec {command}\n")
    script.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.check_output("my-gpu | cat", shell=True, text=True, env=environ).strip() == str(os.getpid())
