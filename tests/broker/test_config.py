"""A config file is taken whole, or refused with its line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulease.broker.config import Config, config_of, texts_of
from gpulease.errors import ConfigError
from gpulease.planner import settings
from gpulease.system.places import SYSTEM_CONFIG


def test_values_of_toml_become_what_one_would_type() -> None:
    text = 'grace = "10s"\nhide-commands = true\nmax-runs = 3\nkeep_memory = 0.25\nMAX_RUNNING_TASKS = 4\n'
    assert texts_of(text, "/c") == {
        "grace": "10s",
        "hide-commands": "on",
        "max-runs": "3",
        "keep-memory": "0.25",
        "max-leases": "4",
    }


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("# a comment\n\ngracee = 10\n", 3, "Did you mean grace?"),
        ("socket_grup = 1\n", 1, "Did you mean socket-group?"),
        ("xyz = 1\n", 1, "socket-group, root-jobs, engine, hosts."),
        ("grace = 10\nmax-runs = 0\n", 2, "1 to 1000000"),
        ("grace = 10\nmax-runs =\n", 2, "not TOML"),
        ('grace = """\n10s\n"""\nhalf-life = "soon"\n', 4, "length of time"),
        ("grace = 10\nGRACE = 11\n", 2, "twice"),
        ("grace = [1]\n", 1, "a list"),
        ("grace = 2020-01-01\n", 1, "a date"),
        ("\n[grace]\na = 1\n", 2, "a table"),
        ("grace = 10\nwrong = {", 2, "not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line_and_what_is_allowed(text: str, line: int, said: str) -> None:
    with pytest.raises(ConfigError) as trouble:
        texts_of(text, "/etc/c.toml")
    assert str(trouble.value).startswith(f"/etc/c.toml, line {line}: ")
    assert said in str(trouble.value)


lines = st.one_of(
    st.text(max_size=20),
    st.builds("{} = {}".format, st.sampled_from([*settings.PARAMETERS, "x"]), st.sampled_from(["1", '"1h"', "true"])),
    st.sampled_from(["[limits]", '"""', "[[a]]", "[limits.user.ada]"]),
)


@given(st.lists(lines, max_size=6))
def test_any_text_is_either_right_or_refused_with_a_line(found: list[str]) -> None:
    what, texts = "/c, line ", {}
    try:
        texts = texts_of("\n".join(found), "/c")
    except ConfigError as trouble:
        what = trouble.what
    assert what.startswith("/c, line ")
    for name, text in texts.items():
        settings.parse(name, text)


@pytest.mark.parametrize(
    ("kind", "environ", "path"),
    [
        ("system", {}, SYSTEM_CONFIG),
        ("own", {"HOME": "/home/ada"}, "/home/ada/.config/gpulease/config.toml"),
        ("shared", {"HOME": "/home/ada", "XDG_CONFIG_HOME": "/conf"}, "/conf/gpulease/config.toml"),
        ("system", {"GPULEASE_DIR": "/d"}, "/d/config.toml"),
        ("own", {"GPULEASE_DIR": "/d", "GPULEASE_CONFIG": "/c.toml"}, "/c.toml"),
        ("own", {"GPULEASE_SIMULATE": "4", "HOME": "/home/ada"}, None),
    ],
)
def test_where_the_file_belongs(kind: str, environ: dict[str, str], path: str | None) -> None:
    assert config_of(kind, environ).path == path


def test_a_file_that_others_may_write_or_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("grace = 3\n")
    assert Config(str(path)).read().texts == {"grace": "3"}
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="written by another"):
        Config(str(path)).read()
    path.chmod(0o664)
    if os.getuid() == 0:
        with pytest.raises(ConfigError, match="written by another") as trouble:
            Config(str(path)).read()
        assert "chmod go-w" in trouble.value.next_step
    else:  # it may be the group that has this user only
        assert Config(str(path)).read().texts == {"grace": "3"}
    path.chmod(0o600)
    path.write_bytes(b"grace = 3\n# \xff\n")
    with pytest.raises(ConfigError, match="line 2"):
        Config(str(path)).read()
    path.write_bytes(b"#" * (1 << 20))
    with pytest.raises(ConfigError, match="KiB"):
        Config(str(path)).read()


def test_a_missing_file_is_fine_unless_it_was_named(tmp_path: Path) -> None:
    missing = os.fspath(tmp_path / "none.toml")
    assert Config(missing).read().texts == {}
    with pytest.raises(ConfigError, match="is not there"):
        Config(missing, named=True).read()


def test_code_for_a_system_broker_is_named_by_root_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.toml"
    path.write_text('policy.order = "site:order"\n')
    path.chmod(0o644)
    assert Config(str(path)).read().texts == {"policy.order": "site:order"}
    seen = os.stat(path)
    for owner, refused in ((0, False), (4242, True)):
        fields = [owner if at == 4 else value for at, value in enumerate(seen[:10])]
        monkeypatch.setattr(os, "stat", lambda _, fields=fields: os.stat_result(fields))
        if refused:
            with pytest.raises(ConfigError, match="does not belong to root"):
                Config(str(path), system=True).read()
        else:
            assert Config(str(path), system=True).read().texts
