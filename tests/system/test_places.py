"""Where a broker lives, and whether the place may be trusted."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from support.needs import needs_root

from gpulease.errors import BrokerUnavailable, UsageError
from gpulease.simulator.state import create
from gpulease.system import places

HOST = os.uname().nodename


def seen(environ: dict[str, str]) -> list[tuple[str, str, str]]:
    return [(place.kind, place.run, place.state) for place in places.candidates(environ)]


def test_a_named_folder_isolates_completely(tmp_path: Path) -> None:
    environ = {"GPULEASE_DIR": str(tmp_path), "XDG_RUNTIME_DIR": "/run/user/1", "HOME": "/home/a"}
    assert seen(environ) == [("own", str(tmp_path), str(tmp_path))]
    system = places.of_kind("system", environ)
    assert (system.run, system.state) == (str(tmp_path), f"{tmp_path}/state")
    assert places.of_kind("shared", environ).state == str(tmp_path)


def test_clients_look_for_the_systems_then_a_shared_then_their_own(tmp_path: Path) -> None:
    state = f"/home/a/.local/state/gpulease/{HOST}"
    assert seen({"HOME": "/home/a", "XDG_RUNTIME_DIR": str(tmp_path)}) == [
        ("system", "/run/gpulease", "/var/lib/gpulease"),
        ("shared", "/tmp/gpulease", f"{state}/shared"),
        ("own", f"{tmp_path}/gpulease", state),
    ]


def test_a_runtime_folder_that_is_not_there_or_not_absolute_is_passed_by(tmp_path: Path) -> None:
    for runtime in ("", "relative", str(tmp_path / "gone")):
        own = places.own({"HOME": "/home/a", "XDG_RUNTIME_DIR": runtime})
        assert own.run == f"/home/a/.local/state/gpulease/{HOST}/run"


@needs_root
def test_a_runtime_folder_of_another_user_is_passed_by(tmp_path: Path) -> None:
    """As after `su`, which keeps the variables of who called it."""
    os.chown(tmp_path, 61001, 61001)
    assert places.own({"HOME": "/home/a", "XDG_RUNTIME_DIR": str(tmp_path)}).run.startswith("/home/a/")


def test_what_lasts_is_kept_where_the_user_keeps_state_apart_for_each_host() -> None:
    assert places.own({"HOME": "/home/a", "XDG_STATE_HOME": "/state"}).state == f"/state/gpulease/{HOST}"
    for useless in ("", "relative"):
        own = places.own({"HOME": "/home/a", "XDG_STATE_HOME": useless})
        assert own.state == f"/home/a/.local/state/gpulease/{HOST}"


def test_a_simulated_machine_never_meets_the_brokers_of_the_real_one(tmp_path: Path) -> None:
    create(tmp_path / "machine", 2)
    for environ in ({"GPULEASE_SIMULATION": str(tmp_path / "machine")}, {"GPULEASE_SIMULATE": "4"}):
        ((kind, run, state),) = seen({"HOME": str(tmp_path), **environ})
        assert (kind, run) == ("own", state)
    assert len(places.candidates({"HOME": "/home/a", "GPULEASE_SIMULATE": "0"})) == 3


def test_a_path_too_long_for_a_socket_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match="too long"):
        places.socket_path("/" + "x" * 200)
    longest = "/" + "x" * (places.LONGEST_SOCKET - len("/socket") - 1)
    with socket.socket(socket.AF_UNIX) as one, pytest.raises(FileNotFoundError):
        one.connect(places.socket_path(longest))


@pytest.mark.parametrize(("everyone", "mode"), [(False, 0o700), (True, 0o755)])
@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_a_folder_is_made_with_its_mode_whatever_the_umask(
    tmp_path: Path, everyone: bool, mode: int, umask: int
) -> None:
    folder = tmp_path / "dir"
    before = os.umask(umask)
    try:
        places.prepare(str(folder), everyone)
        places.prepare(str(folder), everyone)
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == mode
    assert places.distrust(str(folder)) is None


def test_what_is_no_folder_or_open_to_others_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    for mode in (0o777, 0o775, 0o770, 0o702):
        (tmp_path / f"{mode:o}").mkdir()
        (tmp_path / f"{mode:o}").chmod(mode)
    expected = {"file": "not a directory", "link": "symbolic link", "gone": "no such file", "777": "others may write"}
    for name, words in {**expected, "775": "write", "770": "write", "702": "write"}.items():
        assert words in (places.distrust(str(tmp_path / name)) or "")
        if name != "gone":
            with pytest.raises(BrokerUnavailable, match="cannot be used"):
                places.prepare(str(tmp_path / name), everyone=True)


def test_a_folder_of_somebody_else_is_not_trusted(tmp_path: Path) -> None:
    assert places.distrust(str(tmp_path), {os.geteuid() + 1}) is not None
    assert places.is_broker_of(str(tmp_path), os.stat(tmp_path).st_uid)
    assert places.is_broker_of(str(tmp_path), 0)
    assert not places.is_broker_of(str(tmp_path), 54321)
    assert not places.is_broker_of(str(tmp_path / "gone"), 54321)


def test_nobody_starts_a_broker_of_their_own_in_the_place_of_everybodys(tmp_path: Path) -> None:
    folder = tmp_path / "dir"
    place = places.Place("own", str(folder), str(tmp_path / "state"))
    places.prepare(str(folder), everyone=True)
    places.write_kind(str(folder), "shared")
    with pytest.raises(BrokerUnavailable, match="does not run") as refused:
        places.prepare_own(place)
    assert "gpulease broker --shared" in refused.value.next_step
    assert folder.stat().st_mode & 0o777 == 0o755
    places.write_kind(str(folder), "own")
    places.prepare_own(place)
    assert [path.stat().st_mode & 0o777 for path in (folder, tmp_path / "state")] == [0o700, 0o700]
