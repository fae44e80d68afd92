"""`gpulease install` into another root folder: each file is written once, and nobody else's is touched."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.machine import PATIENCE, plain_environment
from support.needs import needs, needs_root

from gpulease.broker.config import texts_of
from gpulease.cli.install import manifest
from gpulease.cli.install.changes import is_sealed, sealed
from gpulease.cli.install.manifest import check_python
from gpulease.cli.main import VERBS
from gpulease.errors import StateError
from gpulease.planner import settings
from gpulease.system.service import LAUNCHER_KEYS, socket_group

UNIT = "etc/systemd/system/gpulease.service"
CONFIG = "etc/gpulease/config.toml"
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "install.md"
# What a job would inherit: its user could do less in a job than after a login.
INHERITED = re.compile(
    r"^(Protect\w+|Private\w+|Restrict\w+|SystemCall\w+|Capability\w+|NoNewPrivileges|MemoryDenyWriteExecute|"
    r"LockPersonality|Device\w+|ReadOnlyPaths|InaccessiblePaths|TemporaryFileSystem|IPAddress\w+|User|Group|Nice|"
    r"OOMScoreAdjust|PAMName|RootDirectory|RuntimeDirectory)=",
    re.MULTILINE,
)


def gpulease(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environ = {**plain_environment(), **more}
    return subprocess.run(
        [sys.executable, "-m", "gpulease", *words], env=environ, capture_output=True, text=True, timeout=PATIENCE
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    done = gpulease("install", "--system", "--root", str(tmp_path))
    assert done.returncode == 0, done.stderr
    return tmp_path


def again(root: Path, *words: str, verb: str = "install") -> subprocess.CompletedProcess[str]:
    return gpulease(verb, "--system", "--root", str(root), *words)


def tree(root: Path) -> dict[str, tuple[int, int]]:
    """Which files there are; a file that was written anew is another one."""
    found = [path for path in root.rglob("*") if not path.is_dir()]
    return {str(path.relative_to(root)): (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in found}


def actions(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {row["path"]: row["action"] for row in json.loads(done.stdout)["files"]}


def test_a_second_run_changes_nothing_and_says_so(root: Path) -> None:
    before = tree(root)
    done = again(root)
    assert "Nothing was changed." in done.stdout
    assert tree(root) == before


def test_folders_and_files_have_their_modes(root: Path) -> None:
    modes = {path: oct((root / path).stat().st_mode & 0o7777) for path in ("var/lib/gpulease", "etc/gpulease", UNIT)}
    assert list(modes.values()) == ["0o700", "0o755", "0o644"]
    (root / UNIT).chmod(0o600)
    assert "corrected" in again(root).stdout
    assert (root / UNIT).stat().st_mode & 0o777 == 0o644


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    words = f"umask 077; exec {sys.executable} -m gpulease install --system --root {tmp_path}"
    subprocess.run(["sh", "-c", words], check=True, capture_output=True, timeout=PATIENCE)
    assert (tmp_path / "usr/local/share/man/man1").stat().st_mode & 0o777 == 0o755


def test_a_dry_run_says_the_same_and_does_nothing(tmp_path: Path) -> None:
    reply = actions(again(tmp_path, "--dry-run", "--json"))
    assert "would make" in again(tmp_path, "--dry-run").stdout
    assert tree(tmp_path) == {}
    assert actions(again(tmp_path, "--json")) == reply
    listed = [file.path for file in manifest.system(sys.executable, root=str(tmp_path))]
    assert sorted(reply) == sorted(f"{tmp_path}{path}" for path in listed)


def test_a_file_of_an_older_version_is_replaced(root: Path) -> None:
    (root / UNIT).write_text(sealed("[Service]\n"))
    assert f"replaced   {root}/{UNIT}" in again(root).stdout
    assert "ExecStart" in (root / UNIT).read_text()


@pytest.mark.parametrize("edit", ["append", "change", "mask"])
def test_a_unit_that_was_edited_by_hand_is_left_and_named(edit: str, root: Path) -> None:
    unit = root / UNIT
    if edit == "mask":
        unit.unlink()
        unit.symlink_to("/dev/null")
    else:
        text = unit.read_text()
        unit.write_text(f"{text}Nice=5\n" if edit == "append" else text.replace("RestartSec=5s", "RestartSec=9s"))
    before = tree(root)
    for verb in ("install", "uninstall"):
        done = again(root, "--dry-run", verb=verb)
        assert (done.returncode, f"left       {unit}" in done.stdout) == (0, True)
    reply = again(root).stdout
    assert f"left       {unit}" in reply
    assert "--force replaces them, and keeps each as .bak." in reply
    assert ".new" not in reply
    assert tree(root) == before
    assert again(root, "--force").returncode == 0
    assert is_sealed(unit.read_text())
    assert tree(root)[f"{UNIT}.bak"] == before[UNIT]


def test_a_second_backup_leaves_the_first(root: Path) -> None:
    for number in range(2):
        (root / UNIT).write_text(f"# {number}\n")
        again(root, "--force")
    assert [(root / f"{UNIT}.bak{more}").read_text() for more in ("", "1")] == ["# 0\n", "# 1\n"]


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_an_edited_config_is_never_overwritten_and_the_new_one_is_beside_it(force: list[str], root: Path) -> None:
    edited = (root / CONFIG).read_text().replace('# grace = "10s"', 'grace = "20"')
    (root / CONFIG).write_text(edited)
    done = again(root, *force)
    assert f"made       {root}/{CONFIG}.new" in done.stdout
    assert "The new version is beside them, as .new." in done.stdout
    assert ".bak" not in done.stdout
    assert (root / CONFIG).read_text() == edited
    assert is_sealed((root / f"{CONFIG}.new").read_text())
    assert "Nothing was changed." in again(root, *force).stdout
    assert again(root, verb="uninstall").returncode == 0
    assert sorted(path.name for path in (root / "etc/gpulease").iterdir()) == ["config.toml"]


def test_the_config_has_every_setting_with_its_default(root: Path) -> None:
    text = (root / CONFIG).read_text()
    assert texts_of(text, CONFIG) == {}
    lines = re.findall(r"^# ([a-z.-]+ = .*)$", text, re.MULTILINE)
    found = texts_of("\n".join(lines), CONFIG)
    assert {line.partition(" = ")[0] for line in lines} == {*settings.PARAMETERS, *LAUNCHER_KEYS}
    assert settings.apply(found, pytest.fail) == settings.apply({}, pytest.fail)
    words = " ".join(text.replace("\n#", " ").split())
    assert all(" ".join(one.meaning.split()) in words for one in settings.PARAMETERS.values())


def test_the_group_of_the_socket_is_kept(root: Path) -> None:
    assert socket_group(str(root / CONFIG)) is None
    assert again(root, "--group", "lab users").returncode == 0
    assert again(root).returncode == 0
    assert socket_group(str(root / CONFIG)) == "lab users"


def test_an_edited_config_with_another_group_stops_the_installation(root: Path) -> None:
    (root / CONFIG).write_text('socket-group = "old"\ngrace = 1\n')
    before = tree(root)
    done = again(root, "--group", "new")
    assert (done.returncode, "edited by hand" in done.stderr) == (2, True)
    assert tree(root) == before
    assert again(root, "--group", "old").returncode == 0


def test_uninstall_removes_all_but_the_state(root: Path) -> None:
    (root / "var/lib/gpulease/state.db").write_text("queue")
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir()
    (wants / "gpulease.service").symlink_to(f"/{UNIT}")
    assert actions(again(root, "--dry-run", "--json", verb="uninstall"))[f"{root}/{UNIT}"] == "remove"
    assert again(root, verb="uninstall").returncode == 0
    assert set(tree(root)) == {"var/lib/gpulease/state.db"}
    assert not (root / "etc/gpulease").exists()
    assert "Nothing was changed." in again(root, verb="uninstall").stdout
    again(root, "--purge", verb="uninstall")
    assert list((root / "var/lib").iterdir()) == []


def test_a_link_or_file_where_a_folder_belongs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/gpulease").write_text("")
    done = again(tmp_path)
    assert (done.returncode, "is not a folder" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2),
        (["--system", "--user"], 2),
        (["--user", "--root", "/tmp"], 2),
        (["--user", "--group", "x"], 2),
        (["--system", "--root", "/no/such/folder"], 2),
        (["--system", "--root", ""], 2),
        (["--system", "--root", "/tmp", "--group", ""], 2),
        (["--system", "--root", "/tmp", "--group", "a\nb"], 2),
        (["--system", "--root", "/tmp", "--python", "/x\nExecStartPre=/bin/false"], 2),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], code: int) -> None:
    done = gpulease("install", *words)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)


# -------------------------------------------------------------------- one user's


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_CONFIG_HOME": "", "XDG_DATA_HOME": ""}


def test_a_users_files_are_below_the_home_folder_and_all_leave(home: dict[str, str]) -> None:
    done = gpulease("install", "--user", **home)
    assert done.returncode == 0, done.stderr
    made = set(tree(Path(home["HOME"])))
    assert {".config/systemd/user/gpulease.service", ".local/share/man/man1/gpulease.1"} <= made
    assert "Nothing was changed." in gpulease("install", "--user", **home).stdout
    assert gpulease("uninstall", "--user", **home).returncode == 0
    assert tree(Path(home["HOME"])) == {}


def test_other_folders_for_settings_and_data_are_heeded(home: dict[str, str], tmp_path: Path) -> None:
    more = {"XDG_CONFIG_HOME": str(tmp_path / "c"), "XDG_DATA_HOME": "relative"}
    assert gpulease("install", "--user", **{**home, **more}).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"c", ".local"}


# -------------------------------------------------------------------- what the files say

needs_systemd = needs("systemd-analyze")


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "XDG_RUNTIME_DIR": "/tmp"}  # `--user` wants one, whatever is in it
    return subprocess.run(["systemd-analyze", *words], env=environ, capture_output=True, text=True, timeout=PATIENCE)


@needs_systemd
@pytest.mark.parametrize("whose", ["system", "user"])
def test_systemd_finds_nothing_wrong_with_a_unit(whose: str, root: Path, home: dict[str, str]) -> None:
    gpulease("install", "--user", **home)
    unit = root / UNIT if whose == "system" else Path(home["HOME"], ".config/systemd/user/gpulease.service")
    done = analyze("verify", "--man=no", f"--{whose}", str(unit))
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_systemd_sees_what_protects_without_reaching_jobs(root: Path) -> None:
    done = analyze("security", "--offline=true", "--json=short", str(root / UNIT))
    assert done.returncode == 0, done.stderr
    good = {row["json_field"] for row in json.loads(done.stdout) if row["set"] is True}
    assert {"AmbientCapabilities", "KeyringMode", "Delegate", "NotifyAccess", "UMask"} <= good


@pytest.mark.parametrize("name", ["system.service", "user.service"])
def test_a_unit_sets_nothing_that_a_job_would_suffer_from_and_the_page_explains_each_line(name: str) -> None:
    text = (Path(manifest.__file__).parent / "templates" / name).read_text()
    assert INHERITED.findall(text) == []
    page = PAGE.read_text()
    keys = re.findall(r"^([A-Z]\w+)=", text, re.MULTILINE)
    assert len(keys) > 10
    assert [key for key in keys if f"`{key}=" not in page] == []


@pytest.mark.parametrize(
    ("path", "word"),
    [("/opt/g/bin/python", "/opt/g/bin/python"), ("/opt/a b/100%/py", '"/opt/a b/100%%/py"'), ('/"\\', '"/\\"\\\\"')],
)
def test_any_path_can_stand_in_a_unit(path: str, word: str) -> None:
    assert manifest.unit_word(path) == word


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (["common-account", "system-auth"], "account   include   common-account"),
        (["system-auth"], "account   include   system-auth"),
        ([], "account   required  pam_unix.so"),
    ],
)
def test_the_account_check_is_the_distributions(files: list[str], line: str, tmp_path: Path) -> None:
    (tmp_path / "etc/pam.d").mkdir(parents=True)
    for name in files:
        (tmp_path / "etc/pam.d" / name).touch()
    again(tmp_path)
    assert line in (tmp_path / "etc/pam.d/gpulease").read_text().splitlines()


@needs("groff")
def test_the_manual_page_is_sound_and_has_every_verb(root: Path) -> None:
    page = root / "usr/local/share/man/man1/gpulease.1"
    done = subprocess.run(["groff", "-man", "-k", "-ww", "-Tutf8", "-P-c", str(page)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.sub(".\b", "", done.stdout)
    assert [verb for verb in VERBS if f"usage: gpulease {verb}" not in shown] == []
    assert 'eval "$(gpulease get --export)"' in shown or "$(gpulease get)" in shown


def test_bash_completes_from_the_installed_file(root: Path) -> None:
    script = root / "usr/local/share/bash-completion/completions/gpulease"
    lines = (
        f'gpulease() {{ "{sys.executable}" -m gpulease "$@"; }}; source {script}; '
        'COMP_WORDS=(gpulease unin); COMP_CWORD=1; _gpulease; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", lines], env=plain_environment(), capture_output=True, text=True)
    assert done.stdout == "uninstall\n"


@needs_root
def test_a_python_that_a_strict_umask_hides_is_told_how_to_be_shown(tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    folder.chmod(0o700)
    with pytest.raises(StateError, match="cannot run gpulease") as caught:
        check_python(str(folder / "bin" / "python"))
    assert f"chmod -R a+rX {folder}" in caught.value.next_step
