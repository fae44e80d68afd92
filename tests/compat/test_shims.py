"""`gpulease shims DIR`: what it writes, what it leaves alone, and that what it wrote runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from support.drop_ins import DropIns, old_python
from support.machine import PATIENCE, Machine
from support.other_users import needs_root, two_users

WHO = "import gpulease_shim, sys; sys.stdout.write(gpulease_shim.run('--version').out)"


def test_its_two_lines_put_commands_and_packages_in_reach(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    done = machine.run("shims", str(folder))
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 2)
    script = (
        f'{done.stdout}command -v gpu-acquisitor; "{sys.executable}" -c "import safe_gpu; print(safe_gpu.__file__)"'
    )
    found = subprocess.run(["sh", "-c", script], env=machine.environ, capture_output=True, text=True)
    assert found.stdout.splitlines() == [f"{folder}/bin/gpu-acquisitor", f"{folder}/python/safe_gpu/__init__.py"]


def test_a_second_run_changes_nothing(machine: Machine, tmp_path: Path) -> None:
    first = machine.json("shims", str(tmp_path))["files"]
    assert {row["action"] for row in first} == {"make"}
    assert {row["action"] for row in machine.json("shims", str(tmp_path))["files"]} == {"none"}
    assert all(os.access(row["path"], os.X_OK) == ("/bin/" in row["path"]) or os.geteuid() == 0 for row in first)


def test_what_others_wrote_or_edited_stays(machine: Machine, tmp_path: Path) -> None:
    foreign = tmp_path / "bin" / "gpu-acquisitor"
    foreign.parent.mkdir()
    foreign.write_text("mine\n")
    done = machine.run("shims", str(tmp_path))
    assert done.returncode == 1
    assert str(foreign) in done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name in ("bin", "python")] == ["bin"]
    assert machine.run("shims", str(tmp_path), "--force").returncode == 0
    assert (tmp_path / "bin" / "gpu-acquisitor.bak").read_text() == "mine\n"
    shared = tmp_path / "python" / "gpulease_shim.py"
    shared.write_text(f"# mine\n{shared.read_text()}")
    assert machine.run("shims", str(tmp_path)).returncode == 1


def refused(machine: Machine, folder: Path) -> str:
    """What is said of a folder in which others can write, where nothing is written then."""
    before = sorted(folder.rglob("*"))
    done = machine.run("shims", str(folder), "--force")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Nothing was written." in done.stderr
    assert sorted(folder.rglob("*")) == before
    return " ".join(done.stderr.split())


def test_folders_that_others_may_write_or_that_are_links_are_refused(machine: Machine, tmp_path: Path) -> None:
    folder, victim = tmp_path / "shims", tmp_path / "victim"
    (folder / "python").mkdir(parents=True)
    victim.mkdir()
    (folder / "python" / "safe_gpu").symlink_to(victim)
    assert "safe_gpu is a link" in refused(machine, folder)
    assert list(victim.iterdir()) == []
    (folder / "python" / "safe_gpu").unlink()
    for place in (folder, folder / "python"):
        place.chmod(0o777)
        assert f"{place} may be written by other users" in refused(machine, folder)
        place.chmod(0o755)
    (tmp_path / "link").symlink_to(folder)
    assert machine.run("shims", str(tmp_path / "link")).returncode == 0


@needs_root
def test_what_belongs_to_another_user_is_refused(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "shims"
    assert machine.run("shims", str(folder)).returncode == 0
    stranger = two_users()[0].pw_uid
    for path in (folder, folder / "bin", folder / "python" / "safe_gpu", folder / "bin" / "GPU.py"):
        os.chown(path, stranger, -1)
        assert f"{path} belongs to another user" in refused(machine, folder)
        os.chown(path, 0, -1)


def test_a_fifo_under_a_name_of_the_past_keeps_nobody_waiting(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    os.mkfifo(tmp_path / "bin" / "GPU.py.part")
    assert machine.run("shims", str(tmp_path)).returncode == 0
    assert [path.name for path in tmp_path.rglob("*.part")] == ["GPU.py.part"]


def test_only_some(machine: Machine, tmp_path: Path) -> None:
    assert machine.run("shims", str(tmp_path), "--only", "safe_gpu").returncode == 0
    assert not (tmp_path / "bin").exists()
    assert {path.name for path in (tmp_path / "python").iterdir()} == {"gpulease_shim.py", "safe_gpu"}
    done = machine.run("shims", str(tmp_path), "--only", "nonsense")
    assert done.returncode == 2
    assert "safe_gpu" in done.stderr


@pytest.mark.parametrize("folder", ["", "a:b"])
def test_a_folder_that_no_path_can_have_is_refused(machine: Machine, folder: str) -> None:
    assert machine.run("shims", folder).returncode == 2


def test_gpulease_is_found_as_filled_in_by_the_variable_and_on_the_path(machine: Machine, tmp_path: Path) -> None:
    shims = DropIns(machine, tmp_path / "shims")
    assert shims.python(WHO).stdout.startswith("gpulease ")
    assert shims.run(sys.executable, "-c", WHO, PATH="", GPULEASE="/nowhere").stdout.startswith("gpulease ")
    unfilled = "import gpulease_shim; gpulease_shim.COMMAND = []; print(gpulease_shim.command())"
    assert shims.run(sys.executable, "-c", unfilled).stdout == "['gpulease']\n"
    assert shims.run(sys.executable, "-c", unfilled, GPULEASE="x 'y z'").stdout == "['x', 'y z']\n"
    nowhere = "import gpulease_shim; gpulease_shim.COMMAND = []; gpulease_shim.status()"
    done = shims.run(sys.executable, "-c", nowhere, GPULEASE="/nowhere")
    assert "There is no command /nowhere. Run `gpulease shims` again" in done.stderr


def test_a_failure_has_the_code_and_both_sentences(machine: Machine, tmp_path: Path) -> None:
    code = """
import gpulease_shim
try:
    gpulease_shim.ask("get", "-n", "9", "--no-wait")
except gpulease_shim.GpuleaseFailed as error:
    print(error.code, bool(error.what), bool(error.next_step), "gpulease:" in error.what)
"""
    done = DropIns(machine, tmp_path / "shims").python(code)
    assert done.stdout.split()[1:] == ["True", "True", "False"], done.stderr


@pytest.mark.skipif(old_python() is None, reason="there is no Python 3.6 here")
def test_packages_load_in_old_python(machine: Machine, tmp_path: Path) -> None:
    shims = DropIns(machine, tmp_path / "shims")
    names = sorted({path.stem for path in (tmp_path / "shims" / "python").iterdir()} - {"sge"})  # that is for new ones
    done = shims.python(f"import {', '.join(names)}; {WHO}", python=old_python() or "")
    assert done.stdout.startswith("gpulease "), done.stderr


def test_compat_is_the_same_code(machine: Machine) -> None:
    code = "from gpulease.compat import safe_gpu as s; import gpulease.compat.safe_gpu as t; print(s is t, s.__file__)"
    done = subprocess.run([sys.executable, "-c", code], env=machine.environ, capture_output=True, text=True)
    same, file = done.stdout.split()
    assert (same, file.endswith("compat/shims/python/safe_gpu/safe_gpu.py")) == ("True", True)


def test_shells_complete_it(machine: Machine) -> None:
    assert "shims" in machine.run("completion", "--words", "sh").stdout.split()
    assert {"--only", "--force"} <= set(machine.run("completion", "--words", "shims", "--").stdout.split())


def test_placeholders_of_the_broker_are_nobodys_use(machine: Machine, tmp_path: Path) -> None:
    processes = [{"pid": pid, "graphics": False} for pid in (7, 8)]
    device = {"label": "0", "state": "leased", "processes": processes}
    reply = {"devices": [device, {**device, "processes": None}], "neighbours": {"safe-gpu": {"placeholders": {"0": 7}}}}
    (tmp_path / "told").write_text(json.dumps(reply))
    code = """
import gpulease_shim, sys
gpulease_shim.COMMAND = ["/bin/sh", "-c", "cat " + sys.argv[1]]
for document in (gpulease_shim.status(), gpulease_shim.fresh_status()):
    print([gpulease_shim.computing(device) for device in document["devices"]])
"""
    done = DropIns(machine, tmp_path / "shims").python(code, str(tmp_path / "told"))
    assert done.stdout == "[1, 0]\n[1, 0]\n", done.stderr


NONSENSE = ["sh -c 'echo {}'", '"', "echo hi", "/nowhere", "/etc/passwd"]
FAILURES = {"GPU.py --info": 255, "gpulimit ls": 69, "gpuselect": 1, "gpulimit_server": 69}


def test_without_a_gpulease_each_says_in_a_line_what_to_do(machine: Machine, tmp_path: Path) -> None:
    shims = DropIns(machine, tmp_path / "shims")
    shared = tmp_path / "shims" / "python" / "gpulease_shim.py"
    shared.write_text(re.sub("^COMMAND = .*", "COMMAND = ['/gone']", shared.read_text(), flags=re.M))
    for words, value in [*product(FAILURES, NONSENSE[:1]), *product(["GPU.py --info"], NONSENSE[1:])]:
        done = shims.run(*words.split(), GPULEASE=value)
        said = (done.stdout + done.stderr).removeprefix("start\n")
        assert (done.returncode, said.count("\n")) == (FAILURES[words], 1), said
        assert "Run `gpulease shims` again, or set GPULEASE to the command." in said


def test_a_python_that_lost_its_gpulease_is_named(machine: Machine, tmp_path: Path) -> None:
    shims = DropIns(machine, tmp_path / "shims")
    shared = tmp_path / "shims" / "python" / "gpulease_shim.py"
    lost = json.dumps([sys.executable, "-I", "-S", "-m", "gpulease"])
    shared.write_text(re.sub("^COMMAND = .*", f"COMMAND = {lost}", shared.read_text(), flags=re.M))
    done = shims.run("GPU.py", "--info")
    assert (done.returncode, done.stderr.count("\n")) == (255, 1)
    assert f"There is no gpulease for {sys.executable}. Run `gpulease shims` again" in done.stderr


def test_a_copy_says_that_it_wants_to_be_a_link(machine: Machine, tmp_path: Path) -> None:
    shims = DropIns(machine, tmp_path / "shims")
    commands = [path for path in (tmp_path / "shims" / "bin").iterdir() if path.suffix != ".sh"]
    assert len(commands) >= 8
    for path in commands:
        shutil.copy(path, tmp_path)
        done = shims.run(str(tmp_path / path.name), PYTHONPATH="")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "Link to it instead of copying it, or set PYTHONPATH." in done.stderr
    (tmp_path / "linked").symlink_to(tmp_path / "shims" / "bin" / "GPU.py")
    assert shims.run(str(tmp_path / "linked"), "--gpu-count", PYTHONPATH="").returncode == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_is_gone_ends_it_silently(machine: Machine, tmp_path: Path, unbuffered: str) -> None:
    shims = DropIns(machine, tmp_path / "shims")
    environ = {**shims.environ, "PYTHONUNBUFFERED": unbuffered}
    for words in ("GPU.py --gpu-count", "gpulimit help", "gpuselect --help"):
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(words.split(), env=environ, stdout=writing, stderr=subprocess.PIPE, timeout=PATIENCE)
        os.close(writing)
        assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")
