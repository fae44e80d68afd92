"""Claims between brokers: what is taken, by whom, who may ignore it, and what the keeper does with them."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.open_python import open_python
from support.other_users import needs_root
from support.users import becoming
from support.waiting import PATIENCE, wait_for_end, wait_until

from gpulease.broker.core.instructions import Holding
from gpulease.broker.neighbours import claim_keeper
from gpulease.broker.neighbours.claim_shelves import Shelves
from gpulease.broker.neighbours.claims import Claims
from gpulease.system import claims, identity
from gpulease.system.places import Place

UUID = "GPU-1"
OTHER = 61301
TAKE = (
    "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); "
    "print(flush=True); sys.stdin.read()"
)
Make = Callable[..., Claims]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Claims] = []

    def one(name: str = "a", kind: str = "own") -> Claims:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        place = Place(kind, str(folder))
        made.append(Claims(select.epoll(), place, str(tmp_path), lambda: None, print, identity.user_name))
        return made[-1]

    yield one
    for broker_claims in made:
        broker_claims.keep({}, False)
        broker_claims.close()


def of_another_user(name: str) -> subprocess.Popen[bytes]:
    words = [*becoming(OTHER), open_python(), "-c", TAKE, name.replace("\0", "\\0")]
    code = words.index("-c") + 1
    words[code] = TAKE.replace("sys.argv[1]", "sys.argv[1].replace('\\\\0', chr(0))")
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    return process


def serve(claims: Claims, seconds: float = 0.2) -> None:
    poll: select.epoll = claims._poll
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left):
            claims.ready(descriptor)
        claims.overdue(time.monotonic())


def test_the_second_is_refused_until_the_first_gives_back(make: Make) -> None:
    first, second = make("a"), make("b")
    assert first.take([UUID, "GPU-2"]) == {}
    assert list(second.take([UUID])) == [UUID]
    assert first.take([UUID]) == {}  # it has it already
    first.give_back(frozenset({"GPU-2"}))
    assert second.take([UUID]) == {}
    assert list(first.take([UUID])) == [UUID]
    assert list(second.take(["GPU-2"])) == ["GPU-2"]


def test_a_sample_waits_for_what_holders_say_and_not_for_those_who_say_nothing(make: Make, tmp_path: Path) -> None:
    first, second = make("a", "shared"), make("b")
    first.take([UUID])
    first.keep({UUID: Holding(((1, 1, None),), "run", "ann", 1e9, "a note")}, False)
    silent = claims.take(claims.claim_name(claims.machine_of(tmp_path), "GPU-2"))
    done: list[float] = []
    began = time.monotonic()
    second.see([UUID, "GPU-2", "GPU-3"], lambda: done.append(time.monotonic() - began))
    assert done == []
    serve(first)
    serve(second)
    assert len(done) == 1
    user = identity.user_name(os.geteuid())
    assert second.held == {
        UUID: f"through {user}'s shared gpulease: a note",
        "GPU-2": f"through {user}'s own gpulease",
    }
    reply: dict[str, Any] = second.shown["holders"][UUID]
    assert (reply["kind"], reply["for"], reply["since"], reply["pid"]) == ("run", "ann", 1e9, os.getpid())
    again: list[int] = []
    second.see([UUID, "GPU-2", "GPU-3"], lambda: again.append(1))
    assert again == [1]  # all of them are known
    assert silent is not None
    silent.close()


def test_the_end_of_a_claim_is_seen_at_once(make: Make) -> None:
    first, second = make("a"), make("b")
    first.take([UUID])
    second.see([UUID], lambda: None)
    serve(first, 0.3)
    serve(second, 0.1)
    first.give_back(frozenset())
    serve(second, 0.1)
    assert second.held == {}


@needs_root
def test_only_a_system_broker_ignores_users_claims_and_they_respect_its_own(make: Make, tmp_path: Path) -> None:
    machine = claims.machine_of(tmp_path)
    user = of_another_user(claims.claim_name(machine, UUID))
    try:
        own, system, another = make("own"), make("system", "system"), make("another", "system")
        for broker_claims in (own, system):
            broker_claims.keep({}, ignoring=True)
        another.keep({}, ignoring=True)
        assert own.take([UUID]) == {UUID: f"through {identity.user_name(OTHER)}'s own gpulease"}
        assert system.take([UUID]) == {}
        assert list(another.take([UUID])) == [UUID]  # the first system broker's is root's, and counts
    finally:
        user.kill()
        user.wait()
    assert list(own.take([UUID])) == [UUID]
    system.give_back(frozenset())
    assert own.take([UUID]) == {}


def test_a_name_that_is_bound_and_not_listened_at_counts_and_its_user_is_known(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "LISTED", 0.0)
    name = claims.claim_name(claims.machine_of(tmp_path), UUID)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(name)
        broker_claims = make()
        for _ in range(2):
            assert broker_claims.take([UUID]) == {UUID: f"through {identity.user_name(os.geteuid())}'s own gpulease"}
            broker_claims.see([UUID], lambda: None)
            assert list(broker_claims.held) == [UUID]
    broker_claims.see([UUID], lambda: None)
    assert broker_claims.held == {}


def test_who_has_a_name_is_known_of_a_socket_that_is_connected_elsewhere_and_not_taken_from_another_type() -> None:
    name, other = (f"\0gpulease/claim/test-{os.getpid()}/{number}" for number in (1, 2))
    with claims.take(other) or socket.socket() as listener, socket.socket(socket.AF_UNIX) as busy:
        busy.bind(name)
        busy.connect(other)
        assert claims.sockets(name) == {name: os.geteuid()}
        assert listener.getsockname() == other.encode()
        for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            with socket.socket(socket.AF_UNIX, kind) as same:
                same.bind(f"{name}/{kind}")
                assert claims.sockets(f"{name}/") == {}


@needs_root
def test_who_listens_is_not_taken_for_root_because_somebody_waits_before_it() -> None:
    """What waits there has the same name, and is nobody's until it is accepted."""
    name = f"\0gpulease/claim/test-{os.getpid()}/3"
    listening, asking = of_another_user(name), socket.socket(socket.AF_UNIX)
    with asking:
        asking.connect(name)
        assert claims.sockets(name) == {name: OTHER}
        listening.kill()
        listening.wait()


def test_a_list_of_very_many_sockets_is_read_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "LISTED", 0.0)
    monkeypatch.setattr(claims, "MAX_READ", 1)
    users = claims._Users()
    name = f"\0gpulease/claim/test-{os.getpid()}/4"
    with contextlib.ExitStack() as opened:
        for number in range(1000):
            opened.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0gpulease-test/{os.getpid()}/{number:080}")
        opened.enter_context(socket.socket(socket.AF_UNIX)).bind(name)
        pieces = 1
        while users.at(name) is None:
            pieces += 1
            assert pieces < 1000
    assert users.at(name) == os.geteuid()
    assert pieces > 2


@needs_root
def test_who_takes_a_name_and_does_not_listen_is_named_however_short_it_is_ago(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "LISTED", 0.5)
    machine = claims.machine_of(tmp_path)
    broker_claims = make()
    claims.user_at("")  # the list was read just now
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(claims.claim_name(machine, UUID))
        assert list(broker_claims.take([UUID])) == [UUID]

        def named() -> bool:
            broker_claims.see([UUID], lambda: None)
            return broker_claims.held == {UUID: f"through {identity.user_name(os.geteuid())}'s own gpulease"}

        wait_until(named)


@pytest.mark.parametrize(
    "line", [b"", b"5\n", b"[" * 900, b'{"note": 1e400, "since": "x"}\n', b'{"since": NaN}', b"\xff\n"]
)
def test_whatever_a_holder_says_can_be_shown(line: bytes) -> None:
    reply = claims.read(line)
    assert not any(reply.values())
    nobody = claims.ClaimHolder(None)
    user = claims.whose(nobody, identity.user_name)
    assert json.dumps(claims.shown(nobody, user, reply))
    assert claims.through(user, reply) == "through somebody's own gpulease"


def test_long_names_of_devices_stay_apart() -> None:
    first, second = (claims.claim_name("1-2", f"GPU-{'x' * 200}{end}") for end in "ab")
    assert first != second
    assert max(len(first), len(second)) < 108


# -------------------------------------------------------------------- the keeper


def shelves(tmp_path: Path) -> Shelves:
    return Shelves(select.epoll(), str(tmp_path / "keeper"), "", lambda: None, print)


def text(*leases: tuple[int | None, int | None, float | None]) -> bytes:
    return json.dumps(leases or None).encode()


def is_free(name: str) -> bool:
    taken = claims.take(name)
    if taken is not None:
        taken.close()
    return taken is not None


def test_what_is_on_a_shelf_outlasts_who_put_it_there(tmp_path: Path) -> None:
    name = f"\0gpulease/test/{tmp_path}"[:100]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as owner:
        first = shelves(tmp_path)
        claim = claims.take(name)
        assert claim is not None
        first.put(UUID, claim, text())
        first.put(UUID, claim, text((owner.pid, identity.start_time(owner.pid), None)))
        claim.close()
        first.close()
        assert not is_free(name)
        second = shelves(tmp_path)
        found = second.find()
        assert list(found) == [UUID]
        assert found[UUID].getsockname() == name.encode()
        found[UUID].close()
        second.close()
        assert not is_free(name)
    wait_until(lambda: is_free(name))
    assert shelves(tmp_path).find() == {}


def test_a_keeper_does_not_hold_what_the_broker_writes_to(tmp_path: Path) -> None:
    """Else `gpulease broker | tee` would go on for as long as a lease does."""
    first = shelves(tmp_path)
    with claims.take(f"\0gpulease/test/{tmp_path}"[:100]) or socket.socket() as claim:
        first.put(UUID, claim, text((os.getpid(), None, None)))
    process = first._process
    assert process is not None
    opened = {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (0, 1, 2)}
    first.clear(UUID)
    first.close()
    process.wait()
    assert opened == {os.devnull}


def test_what_is_taken_from_a_shelf_is_free_at_once(tmp_path: Path) -> None:
    name = f"\0gpulease/test/{tmp_path}"[:100]
    first = shelves(tmp_path)
    for _ in range(3):
        claim = claims.take(name)
        assert claim is not None
        first.put(UUID, claim, text())
        claim.close()
        assert not is_free(name)
        first.clear(UUID)
        assert is_free(name)
    first.close()
    process = first._process
    assert process is not None
    wait_for_end(process.pid)  # it has neither a broker nor a claim
    process.wait()


def test_a_claim_that_nobody_was_told_of_is_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_keeper, "UNDECIDED", 0.2)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0gpulease/test/{os.getpid()}")
    listener.listen()
    shelf = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours, theirs = socket.socketpair()
    socket.send_fds(shelf[0], [text()], [theirs.fileno()])
    theirs.close()
    began = time.monotonic()
    assert claim_keeper.wait(listener, {UUID: shelf}, "") is None
    assert 0.2 <= time.monotonic() - began < 20
    assert ours.recv(1) == b""
    for one in (listener, *shelf):
        one.close()


@contextlib.contextmanager
def no_more_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))
    with contextlib.ExitStack() as opened:
        try:
            with contextlib.suppress(OSError):
                while True:
                    opened.enter_context(open(os.devnull))
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_shortage_of_descriptors_leaves_the_other_claims_where_they_are(tmp_path: Path) -> None:
    """A keeper that was forgotten with claims on its shelves would hold them for as long as they might be leased."""
    name = f"\0gpulease/test/{tmp_path}"[:100]
    first = shelves(tmp_path)
    claim = claims.take(name)
    assert claim is not None
    first.put(UUID, claim, text((os.getpid(), identity.start_time(os.getpid()), None)))
    with no_more_descriptors():
        first.put("GPU-2", claim, text())
    assert "Too many open files" in str(first.trouble)
    claim.close()
    assert not is_free(name)
    first.clear(UUID)
    assert is_free(name)
    first.close()


def test_a_keeper_that_is_left_while_it_lives_holds_nothing_of_ours(tmp_path: Path) -> None:
    """Here because its socket was removed: the next broker would not find it."""
    name = f"\0gpulease/test/{tmp_path}"[:100]
    put: list[str] = []
    first = Shelves(select.epoll(), str(tmp_path / "keeper"), "", lambda: put.append("again"), print)
    claim = claims.take(name)
    assert claim is not None
    first.put(UUID, claim, text((os.getpid(), identity.start_time(os.getpid()), None)))
    left = first._process
    (tmp_path / "keeper").unlink()
    first.keep()
    assert put == ["again"]
    first.put(UUID, claim, text((os.getpid(), identity.start_time(os.getpid()), None)))
    claim.close()
    first.close()
    second = shelves(tmp_path)
    found = second.find()[UUID]
    second.clear(UUID)
    found.close()
    assert is_free(name)
    assert left is not None
    assert left.wait(PATIENCE) == 0
    second.close()


def test_more_leases_than_can_be_written_beside_a_claim_are_held_until_a_broker_knows(tmp_path: Path) -> None:
    name = f"\0gpulease/test/{tmp_path}"[:100]
    first = shelves(tmp_path)
    claim = claims.take(name)
    assert claim is not None
    first.put(UUID, claim, text(*[(os.getpid(), 123456789, 1e9)] * 10_000))
    claim.close()
    first.close()
    assert not is_free(name)
    second = shelves(tmp_path)
    second.find()[UUID].close()
    second.clear(UUID)
    assert is_free(name)
    second.close()


def test_leases_are_over_with_their_owner_or_their_time_and_never_without_a_proof() -> None:
    me = os.getpid()
    began = identity.start_time(me)
    assert began is not None
    assert not claim_keeper.has_ended((me, began, None), 10.0)
    assert not claim_keeper.has_ended((me, began, 11.0), 10.0)
    assert not claim_keeper.has_ended((None, None, None), 10.0)
    assert claim_keeper.has_ended((me, began, 10.0), 10.0)
    assert claim_keeper.has_ended((me, began + 1, None), 10.0)
    child = subprocess.Popen([sys.executable, "-c", ""])
    key = child.pid, identity.start_time(child.pid)
    child.wait()
    assert claim_keeper.has_ended((*key, None), 10.0)


def test_what_the_next_broker_starts_does_not_inherit_a_claim(tmp_path: Path) -> None:
    name = f"\0gpulease/test/{tmp_path}"[:100]
    first = shelves(tmp_path)
    claim = claims.take(name)
    assert claim is not None
    first.put(UUID, claim, text((os.getpid(), None, None)))
    claim.close()
    first.close()
    second = shelves(tmp_path)
    found = second.find()[UUID]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False):
        found.close()
        second.clear(UUID)
        assert is_free(name)
    second.close()
