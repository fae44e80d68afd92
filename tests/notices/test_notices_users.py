"""Users of a system broker: each is told by a process of their own, and nobody uses another's address."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.accounts import SystemSite
from support.other_users import needs_root
from support.waiting import PATIENCE, wait_until

from gpulease.notices import address as own_file
from gpulease.notices.address import read_address

SECRET = "T0p53cret"
pytestmark = needs_root


@pytest.fixture(name="mailing")
def mailing_site() -> Iterator[SystemSite]:
    """A system broker whose users have a sendmail that keeps each letter under the user who sent it."""
    site = SystemSite()
    letters, programs = site.folder / "letters", site.folder / "programs"
    letters.mkdir()
    letters.chmod(0o1777)
    programs.mkdir(mode=0o755)
    (programs / "sendmail").write_text(f"#!/bin/sh\numask 022\ncat >> {letters}/$(id -u)\n")
    (programs / "sendmail").chmod(0o755)
    try:
        broker = site.start_broker(PATH=f"{programs}:{os.environ['PATH']}")
        site.ask("set", name="notify-every", value="0s")
        yield site
        broker.terminate()
        broker.wait(PATIENCE)
        assert broker.stderr is not None
        assert "Traceback" not in (said := broker.stderr.read()), said
    finally:
        site.close()


def letters_of(site: SystemSite, user: pwd.struct_passwd) -> str:
    path = site.folder / "letters" / str(user.pw_uid)
    return path.read_text() if path.exists() else ""


def write_address(site: SystemSite, user: pwd.struct_passwd, address: str) -> str:
    """As `gpulease notify set` does. All is imported by now: the user may not be able to read this checkout."""
    path = f"{user.pw_dir}/.config/gpulease/notify.json"

    def write() -> str:
        own_file.write(path, read_address(address))
        return path

    return str(site.as_user(user, write))


def choose(site: SystemSite, user: pwd.struct_passwd, file: str) -> Any:
    return site.told(user, "notify", file=file, events=["failed", "ended"])


def fail(site: SystemSite, user: pwd.struct_passwd, name: str) -> None:
    added = site.add(user, "exit 3", name=name)
    site.end(added["ok"]["first"])


def sends(user: pwd.struct_passwd) -> bool:
    """Whether a process of that user is sending."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.stat().st_uid == user.pw_uid and b"notices.send" in (folder / "cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


def test_each_is_told_by_a_process_of_their_own(mailing: SystemSite) -> None:
    for user, address in ((mailing.alice, "mailto:alice@example.org"), (mailing.bob, "mailto:bob@example.org")):
        assert "ok" in choose(mailing, user, write_address(mailing, user, address))
        fail(mailing, user, f"of {user.pw_name}")
    for user, other in ((mailing.alice, "bob"), (mailing.bob, "alice")):
        letter = wait_until(lambda user=user: letters_of(mailing, user))  # type: ignore[misc]
        assert f"To: {user.pw_name}@example.org" in letter
        assert f"(of {user.pw_name}) is failed: exit code 3." in letter
        assert other not in letter


def test_nobody_reads_or_uses_the_address_of_another(mailing: SystemSite) -> None:
    alice, bob = mailing.alice, mailing.bob
    hers = write_address(mailing, alice, f"mailto:{SECRET}@example.org")
    assert "ok" in choose(mailing, alice, hers)
    assert mailing.as_user(bob, lambda: _opened(hers)) == "PermissionError"
    assert mailing.told(bob, "notify")["ok"] == {"file": None, "events": None}
    assert "ok" in choose(mailing, bob, hers)  # the broker looks at nobody's disk; bob's agent cannot read it
    fail(mailing, bob, "first")
    wait_until(lambda: not sends(bob))
    os.chmod(alice.pw_dir, 0o755)
    for path in (f"{alice.pw_dir}/.config", f"{alice.pw_dir}/.config/gpulease"):
        os.chmod(path, 0o755)
    os.chmod(hers, 0o644)
    fail(mailing, bob, "second")  # and now that it can, it does not trust a file of another's
    wait_until(lambda: not sends(bob))
    assert "ok" in choose(mailing, bob, write_address(mailing, bob, "mailto:bob@example.org"))
    fail(mailing, bob, "third")
    wait_until(lambda: "third" in letters_of(mailing, bob))
    assert SECRET not in letters_of(mailing, bob)
    assert letters_of(mailing, alice) == ""


def test_a_file_that_others_can_read_is_not_used_and_its_user_is_told_so(mailing: SystemSite) -> None:
    alice = mailing.alice
    hers = write_address(mailing, alice, "mailto:alice@example.org")
    os.chmod(hers, 0o644)
    choose(mailing, alice, hers)
    fail(mailing, alice, "one")
    last = Path(hers).with_name("notify-last.json")
    reply = json.loads(wait_until(lambda: last.read_text() if last.exists() else ""))
    assert "not private" in reply["trouble"]
    assert letters_of(mailing, alice) == ""
    assert (last.stat().st_mode & 0o777, last.stat().st_uid) == (0o600, alice.pw_uid)


def test_the_broker_and_what_it_shows_have_nothing_of_the_address(mailing: SystemSite) -> None:
    alice, bob = mailing.alice, mailing.bob
    choose(mailing, alice, write_address(mailing, alice, f"mailto:{SECRET}@example.org"))
    fail(mailing, alice, "one")
    wait_until(lambda: letters_of(mailing, alice))
    everything = [mailing.told(bob, verb) for verb in ("status", "events", "set", "notify")]
    everything.append(mailing.told(bob, "ls", all=True))
    assert SECRET not in str(everything)
    kept = [path for path in Path(mailing.directory).rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if SECRET.encode() in path.read_bytes()]


def test_root_is_told_what_there_is_instead_where_no_agent_runs_as_root(mailing: SystemSite) -> None:
    with mailing.raw() as raw:
        refused = raw.ask("notify", file="/root/.config/gpulease/notify.json")["error"]
    assert refused["code"] == "not-permitted"
    assert "on-broken" in refused["next_step"]


def _opened(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError as trouble:
        return type(trouble).__name__
