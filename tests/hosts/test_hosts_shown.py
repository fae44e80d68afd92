"""The page and `top` with several hosts, one of which cannot be reached and one of which hangs."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

from support.machine import listener_at
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here
from support.stand_in_ssh import StandInSsh
from support.tmux import Tmux, small_terminal  # noqa: F401
from support.waiting import wait_until
from support.web_site import start_web

UNKNOWN = "It has not answered yet."


def test_the_page_shows_hosts_as_they_answer_and_asks_only_while_somebody_looks(
    queue: QueueSite, tmp_path: Path
) -> None:
    ssh = StandInSsh(tmp_path)
    web = start_web(queue, "--hosts", "gpu1,gpu2,gpu3", environ=ssh.environ)
    assert ssh.asked() == []
    assert "Hosts</h2>" in web.page()  # though nobody has answered
    page = wait_until(lambda: text if "4 of 4" in (text := web.page()) and "gpu2 cannot be" in text else None)
    assert page.count('class="gpu free"') == 4
    assert UNKNOWN in page  # gpu3 hangs
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>" not in page
    wait_until(lambda: "gpu3" in ssh.asked())
    assert sorted(ssh.asked()) == ["gpu1", "gpu2", "gpu3"]  # however often the page was
    ssh.let_go()
    wait_until(lambda: "gpu3 cannot be reached" in web.page())
    text = web.ask().text
    assert "gpu1  4 A100" in text
    assert "gpu3 cannot be reached" in text
    rows = web.ask("/?json").json()["hosts"]
    assert [row["host"] for row in rows if row["answer"] is None] == ["gpu2", "gpu3"]
    assert len(rows[0]["answer"]["devices"]) == 4


def test_without_hosts_there_is_none_of_it(queue: QueueSite) -> None:
    web = start_web(queue)
    assert "Hosts</h2>" not in web.page()
    assert "hosts" not in web.ask("/?json").json()


def test_top_opens_a_view_of_all_hosts_and_goes_back(queue: QueueSite, small: Tmux, tmp_path: Path) -> None:
    ssh = StandInSsh(tmp_path)
    small.top(**ssh.environ)
    small.press("h")
    small.wait("No hosts are known", "config.toml")
    (Path(queue.directory) / "config.toml").write_text('hosts = ["gpu1", "gpu2", "gpu3"]\n')
    small.wait("gpu1", "....", "gpu2 cannot be reached", UNKNOWN)
    small.press("h")
    small.wait("Nobody holds or waits for a GPU", "q quit")


def test_top_shows_the_hosts_on_a_machine_without_a_gpu(queue: QueueSite, small: Tmux, tmp_path: Path) -> None:
    ssh = StandInSsh(tmp_path)
    own = Path(tempfile.mkdtemp(prefix="glt-"))  # short: it has a socket
    (own / "config.toml").write_text('hosts = ["gpu2"]\n')
    small.run(queue.words("top"), **ssh.environ, GPULEASE_SIMULATION="", GPULEASE_DIR=str(own))
    try:
        small.wait("HOST", "gpu2 cannot be reached", "h back")
        small.press("C-c")
        small.wait("$", without="h back")
    finally:
        if (broker := listener_at(str(own))) is not None:
            os.kill(broker, signal.SIGKILL)
        shutil.rmtree(own, ignore_errors=True)
