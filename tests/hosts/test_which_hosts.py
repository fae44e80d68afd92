"""Which hosts there are, and what ssh's last words mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulease.broker.config import texts_of
from gpulease.errors import ConfigError, UsageError
from gpulease.hosts import hosts, ssh
from gpulease.system.places import LOCAL, engine


def environ(tmp_path: Path, config: str = "") -> dict[str, str]:
    (tmp_path / "config.toml").write_text(config)
    return {"HOME": str(tmp_path), "GPULEASE_DIR": str(tmp_path)}


def test_hosts_come_from_the_option_then_the_config_then_a_mark(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host web\n# gpulease\nHost gpu8 gpu9 *.lab !gpu7\n  User ada\n")
    assert hosts.names("a,b a", environ(tmp_path)) == ["a", "b"]
    assert hosts.names(None, environ(tmp_path, 'hosts = ["gpu1", "gpu2"]\n')) == ["gpu1", "gpu2"]
    assert hosts.names(None, environ(tmp_path)) == ["gpu8", "gpu9"]


def test_without_any_it_says_how_to_name_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config\.toml"):
        hosts.names(None, environ(tmp_path))


def test_a_config_that_is_wrong_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 2"):
        hosts.names(None, environ(tmp_path, "grace = 3\nhosts = 7\n"))


def test_a_broker_leaves_the_settings_of_commands_alone() -> None:
    assert texts_of('hosts = ["a"]\nengine = "slurm"\ngrace = "3s"\n', "/c") == {"grace": "3s"}


def test_the_engine_is_local_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    assert engine(environ(tmp_path)) == LOCAL
    assert engine(environ(tmp_path, "# my engine\n")) == LOCAL
    assert engine(environ(tmp_path, 'engine = "slurm"\n')) == "slurm"
    assert engine({**environ(tmp_path, 'engine = "slurm"\n'), "GPULEASE_ENGINE": "local"}) == LOCAL


CHANGED = "@@@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n@@@@\nOffending ED25519 key in /k:3\n"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (f"{CHANGED}Host key verification failed.\r\n", "has changed"),
        ("Host key verification failed.\r\n", "does not know the host key"),
        ("ada@gpu3: Permission denied (publickey).\r\n", "takes no key"),
        ("ssh: Could not resolve hostname gpu3: Name or service not known\r\n", "knows no host"),
        ("ssh: connect to host gpu3 port 22: Connection refused\r\n", "Connection refused"),
        ("", "it said nothing"),
    ],
)
def test_what_ssh_says_becomes_one_sentence_and_what_to_do(said: str, told: str) -> None:
    error = ssh.failure("gpu3", said)
    assert told in error.what
    assert "gpu3" in error.what
    assert "\n" not in error.what
    assert error.next_step
    assert error.exit_code == 69


@pytest.mark.parametrize("name", ["-oProxyCommand=touch /tmp/x", "", "a b", "a\nb", "$(id)", "a;b"])
def test_a_name_that_is_none_never_reaches_ssh(name: str) -> None:
    with pytest.raises(UsageError):
        ssh.command(name, "true")


def test_nothing_is_asked_and_no_key_accepted() -> None:
    words = ssh.command("gpu3", "true")
    assert {"-oBatchMode=yes", "-oStrictHostKeyChecking=yes"} <= set(words)
    assert words[-2:] == ["gpu3", "true"]
    assert words[-3] == "--"
