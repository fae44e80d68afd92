"""What a message says, where it may go, and that nothing of a secret or of a control character leaves with it."""

from __future__ import annotations

import email
import os
import socketserver
import stat
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpulease.errors import NotFound, UsageError
from gpulease.model.notices import EVENTS, OF_JOBS, of_job, read_events
from gpulease.notices import address
from gpulease.notices.address import NoticeAddress, read_address
from gpulease.notices.channels import _letter, deliver, payload
from gpulease.notices.words import EACH, compose

SECRET = "T0p53cret"


def job(id: int, event: str = "ended", **more: Any) -> dict[str, Any]:
    usual = {"name": "train", "devices": ["0"], "state": "complete", "ran": 90.0, "waited": 700.0, "host": "lab"}
    return {"event": event, "job": id, "time": 0.0, **usual, **more}


def test_one_notice_is_told_as_it_is() -> None:
    message = compose([job(12, "failed", state="failed", exit_code=139)])
    assert message.title == "gpulease lab: job 12 (train) is failed"
    assert message.text == "Job 12 (train) is failed: signal 11 (SIGSEGV). It ran for 90 s. See `gpulease log 12`."


def test_a_thousand_are_a_few_lines_the_urgent_first() -> None:
    failed = [job(id, "failed", state="failed", exit_code=1) for id in range(1, 4)]
    message = compose([job(id, "turn") for id in range(1, 990)] + [job(id) for id in range(4, 990)] + failed)
    assert message.title == "gpulease lab: 986 ended, 3 failed"
    assert message.text.splitlines()[3:] == ["986 jobs are complete: 4-989."]
    assert (message.number, len(message.notices)) == (989, 50)


def test_what_was_dropped_is_counted() -> None:
    message = compose([job(1)], left_out=7)
    assert message.number == 8
    assert "7 before these" in message.text


def test_every_kind_has_a_sentence_and_a_title() -> None:
    about = {"lease": "L3", "until": 600.0, "why": "GPU is lost", "users": ["ada"], "note": "paper"}
    for event in EVENTS:
        one = compose([job(3, event, **about)])
        many = compose([job(id, event, **about) for id in range(EACH + 1)])
        assert one.text.endswith(".")
        assert len(many.text.splitlines()) == 1
        lease = compose([{**job(3, event, **about), "job": None}])
        assert lease.title


def test_control_characters_and_line_breaks_leave_with_no_message() -> None:
    nasty = "x\x1b]0;owned\x07\nBcc: all@example.org\r\n"
    message = compose([job(1, "failed", name=nasty, state="failed", why=nasty)])
    assert message.title.isprintable()
    assert message.text.isprintable()
    letter = email.message_from_bytes(_letter(NoticeAddress("mail", "mailto:ada@example.org"), message))
    assert letter["Bcc"] is None
    assert letter["To"] == "ada@example.org"
    assert payload(message)["text"].replace("\n", "").isprintable()
    (reply,) = payload(message)["notices"]
    assert reply["name"] == reply["why"] == "x ]0;owned  Bcc: all@example.org  "


def test_a_long_text_is_cut() -> None:
    assert len(compose([job(1, name="x" * 5000)]).text) <= 300


@pytest.mark.parametrize(
    ("text", "kind", "shown"),
    [
        ("tty", "tty", "tty"),
        ("mailto:ada@example.org", "mail", "mailto:ada@example.org"),
        ("mailto:ada", "mail", "mailto:ada"),
        (f"https://hooks.example.com/services/{SECRET}", "web", "https://hooks.example.com/…"),
        (f"https://hooks.example.com:8443/?key={SECRET}", "web", "https://hooks.example.com:8443/…"),
        (f"http://127.0.0.1:9/{SECRET}", "web", "http://127.0.0.1:9/…"),
        (f"slack://{SECRET}/b/c", "apprise", "slack://…"),
        (f"mailtos://ada:{SECRET}@example.org", "apprise", "mailtos://…"),
    ],
)
def test_an_address_is_shown_without_its_secret(text: str, kind: str, shown: str) -> None:
    address = read_address(text)
    assert (address.kind, address.shown) == (kind, shown)
    assert SECRET not in address.shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        SECRET,
        f"mailto:{SECRET} x",
        f"mailto:a@b\n{SECRET}",
        f"mailto:-{SECRET}@@b",
        f"mailto:a@b?cc={SECRET}",
        f"https:///{SECRET}",
        f"https://u:{SECRET}@h/",
        f"http://example.org/{SECRET}",
        f"https://h:port/{SECRET}",
        f"https://[{SECRET}",
        f"javascript:{SECRET}",
        f"https://h/\x1b{SECRET}",
        f"https://h/{SECRET * 300}",
    ],
)
def test_a_wrong_address_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_address(text)
    assert SECRET not in str(refused.value)


def test_events_are_read_in_their_order_and_wrong_ones_are_named() -> None:
    assert read_events("failed, turn", "--on") == ("turn", "failed")
    assert read_events("all", "--on") == tuple(EVENTS)
    assert read_events("none", "--on") == ()
    for wrong in ("", "bogus", "none,failed", ","):
        with pytest.raises(UsageError, match=r"cannot be|and more"):
            read_events(wrong, "--on")


def test_what_a_job_asks_for() -> None:
    assert of_job(True, "notify") == list(OF_JOBS)
    assert of_job(None, "notify") is of_job(False, "notify") is None
    assert of_job(["failed"], "notify") == of_job("failed", "notify") == ["failed"]


def test_the_file_is_its_users_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "notify.json")
    address.write(path, read_address(f"https://h/{SECRET}"))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
    assert address.read(path).text == f"https://h/{SECRET}"
    assert os.listdir(os.path.dirname(path)) == ["notify.json"]


def test_a_test_does_not_hide_how_the_last_notice_fared(tmp_path: Path) -> None:
    path = str(tmp_path / "notify.json")
    address.write_test(path)
    assert (address.last(path) or {})["test"]
    address.write_last(path, 3, "the server cannot be reached")
    address.write_test(path)
    assert (address.last(path) or {})["trouble"] == "the server cannot be reached"


def test_a_file_that_others_may_read_or_that_is_a_link_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "notify.json"
    address.write(str(path), read_address("tty"))
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(Exception, match="address of notices"):
        address.read(str(link))
    path.chmod(0o644)
    with pytest.raises(UsageError, match="is not private"):
        address.read(str(path))
    if os.geteuid() == 0:
        path.chmod(0o600)
        os.chown(path, 12345, -1)
        with pytest.raises(UsageError, match="is not private"):
            address.read(str(path))
    path.unlink()
    with pytest.raises(NotFound):
        address.read(str(path))
    os.mkfifo(path, 0o600)
    with pytest.raises(UsageError):
        address.read(str(path))


class MailServer(socketserver.StreamRequestHandler):
    """As much of SMTP as a sender needs."""

    letters: ClassVar[list[bytes]] = []

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            if line.upper().startswith(b"DATA"):
                self.wfile.write(b"354 go on\r\n")
                self.letters.append(b"".join(iter(self.rfile.readline, b".\r\n")))
            self.wfile.write(b"221 bye\r\n" if line.upper().startswith(b"QUIT") else b"250 well\r\n")


def test_each_notice_has_a_line_of_its_own_in_a_mail_by_apprise() -> None:
    """They were joined: fifty of them were one paragraph."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), MailServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"mailto://127.0.0.1:{server.server_address[1]}/?from=gpulease@example.org&to=ada@example.org"
        deliver(read_address(address), compose([job(1), job(2)]))
        server.shutdown()
    (letter,) = (email.message_from_bytes(one) for one in MailServer.letters)
    plain = next(part for part in letter.walk() if part.get_content_type() == "text/plain")
    text = str(plain.get_payload(decode=True), "utf-8")  # type: ignore[arg-type]
    assert text.splitlines()[:2] == [f"Job {id} (train) is complete, after 90 s." for id in (1, 2)]
    assert letter.get_content_type() == "text/plain", "an HTML part would have them in one paragraph"
