"""The config file: it is in force from the first moment, a wrong one stops a start and never a running broker."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.accounts import SystemSite, system_site  # noqa: F401  # pytest finds the fixture here
from support.other_users import needs_root
from support.site import Site, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import PATIENCE, wait_until


def write(site: Site, text: str) -> Path:
    Path(site.directory).mkdir(mode=0o700, exist_ok=True)
    path = Path(site.directory, "config.toml")
    path.write_text(text)
    return path


def row(site: Site, name: str) -> tuple[str, str]:
    found: dict[str, Any] = site.json("set", name)["parameters"][0]
    return found["value"], found["from"]


def hang_up(site: Site) -> None:
    pid = site.broker_pid()
    assert pid is not None
    os.kill(pid, signal.SIGHUP)


def test_what_was_set_wins_over_the_file_and_the_file_over_the_default(site: Site) -> None:
    write(site, 'grace = "3s"\nhide-commands = true\n')
    assert row(site, "grace") == ("3s", "config")
    assert row(site, "hide-commands") == ("on", "config")
    assert row(site, "patience") == ("20", "default")
    site.run("set", "grace", "7s")
    assert row(site, "grace") == ("7s", "set")
    site.kill_broker()
    assert row(site, "grace") == ("7s", "set")
    site.run("set", "grace", "default")
    assert row(site, "grace") == ("3s", "config")
    assert "config" in site.run("set", "grace", COLUMNS="120").stdout


def test_a_wrong_file_keeps_the_broker_from_starting_and_names_the_line(site: Site) -> None:
    write(site, "# ours\ngrcae = 3\n")
    done = site.run("get", "--no-wait")
    assert done.returncode == 69
    assert "config.toml, line 2: There is no parameter 'grcae'." in done.stderr
    assert "Did you mean grace?" in done.stderr
    assert not Path(site.directory, "socket").exists()
    assert "line 2" in site.run("broker", "--idle", "1s").stderr
    write(site, "grace = 3\n")
    assert site.run("get", "--no-wait").returncode == 0


def test_a_hangup_reads_it_again_and_a_wrong_one_changes_nothing(site: Site) -> None:
    write(site, "max-runs = 2\n")
    assert row(site, "max-runs") == ("2", "config")
    write(site, "max-runs = 3\n")
    hang_up(site)
    wait_until(lambda: row(site, "max-runs") == ("3", "config"))
    path = write(site, "max-runs = 4\npatience = many\n")
    hang_up(site)
    wait_until(lambda: f"the old config stays: {path}, line 2" in site.log())
    assert row(site, "max-runs") == ("3", "config")
    doctor = site.run("doctor", COLUMNS="200")
    assert doctor.returncode == 69
    assert "line 2" in doctor.stdout
    path.unlink()
    hang_up(site)
    wait_until(lambda: row(site, "max-runs") == ("1", "default"))
    assert "line 2" not in site.run("doctor", COLUMNS="200").stdout


def test_the_file_may_be_named(site: Site) -> None:
    named = site.folder / "other.toml"
    named.write_text("max-runs = 5\n")
    site.environ["GPULEASE_CONFIG"] = str(named)
    assert row(site, "max-runs") == ("5", "config")
    site.kill_broker()
    named.unlink()
    done = site.run("set")
    assert (done.returncode, "is not there" in done.stderr) == (69, True)


def test_a_wrong_file_is_seen_before_it_is_read_again(site: Site) -> None:
    assert site.run("broker", "--check").stdout.startswith("There is no config file")
    path = write(site, "max-runs = 2\n")
    assert site.run("broker", "--check").stdout == f"{path} is right: it sets max-runs.\n"
    site.ensure_broker()
    assert site.run("doctor").returncode == 0
    write(site, "max-runs = 2\ngrcae = 3\n")
    checked = site.run("broker", "--check")
    assert (checked.returncode, "line 2" in checked.stderr) == (69, True)
    doctor = site.run("doctor", COLUMNS="200")
    assert doctor.returncode == 69
    assert "config.toml, line 2: There is no parameter 'grcae'." in doctor.stdout
    assert "has the values from before" in doctor.stdout


@needs_root
@pytest.mark.parametrize(
    "wrong", ["grcae = 3\n", 'root-jobs = "maybe"\n', None], ids=["broker", "launcher", "unreadable"]
)
def test_a_broker_is_not_ended_for_one_that_could_not_start(system: SystemSite, wrong: str | None) -> None:
    """With a wrong file `--replace` ended the broker that ran, and then nobody served."""
    before = system.broker_pid()
    path = write(system, wrong or "max-runs = 2\n")
    if wrong is None:
        path.chmod(0o600)  # root reads it, and the broker's own user cannot
    done = system.popen(system.gpulease("broker", "--system", "--replace"), cwd="/")
    said = done.communicate(timeout=PATIENCE)[1]
    assert (done.returncode, str(path) in said) == (69, True), said
    assert system.broker_pid() == before
    assert system.ask("ping")["pid"]
