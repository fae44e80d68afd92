"""The page in a real browser: it follows by itself, acts by a click, and is readable by everybody."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.accounts import SystemSite
from support.browser import Browser, browser
from support.other_users import needs_root
from support.queue_site import QueueSite
from support.users import becoming
from support.waiting import wait_until
from support.web_site import Web, site, web, web_site

FIXTURES = (browser, site, web, web_site)
SIZES = {"phone": (390, 844), "desk": (1280, 900), "wall": (1920, 1080)}
PICTURES = os.environ.get("GPULEASE_PICTURES")  # a folder, to look at what the tests saw


@pytest.fixture(autouse=True)
def nothing_to_complain_about(browser: Browser, web: Web) -> Iterator[None]:
    """No error in the console, and nobody asked but the server."""
    yield
    assert browser.complaints() == []
    assert browser.hosts() <= {f"127.0.0.1:{web.port}"}


def test_a_job_appears_changes_and_ends_without_a_reload(browser: Browser, site: QueueSite, web: Web) -> None:
    browser.open(web.address)
    browser.shows("4 free")
    assert "token" not in browser.driver.current_url
    browser.run("window.same = true")
    id = site.shell("sleep 60", name="train-one")
    browser.shows("train-one", "3 free; 1 held")
    waiting = site.shell("sleep 60", request={"gpus": 4}, name="train-wide")
    browser.shows(f"J{waiting}", "4 GPUs", "needs 4", "1 waiting")
    site.act("kill", id)
    browser.shows("killed", "4 held")
    assert browser.run("return window.same")


def test_the_output_grows_on_the_page_of_a_job_and_html_in_it_is_text(
    browser: Browser, site: QueueSite, web: Web
) -> None:
    os.mkfifo(site.folder / "lines")
    id = site.shell("echo '<img src=x onerror=alert(1)> first'; cat lines")
    browser.open(web.address)
    browser.shows(f"J{id}")
    browser.open(f"{web.address.partition('?')[0]}jobs/{id}")
    browser.shows("<img src=x onerror=alert(1)> first")
    assert browser.run("return document.querySelectorAll('#log *').length") == 0
    browser.run("window.same = true")
    with (site.folder / "lines").open("w", buffering=1) as lines:
        for number in range(3):
            lines.write(f"\x1b[1mline {number}\x1b[0m\n")
            browser.shows(f"line {number}")
        for percent in (10, 20):
            lines.write(f"\r{percent}%")
            lines.flush()
            browser.shows(f"{percent}%")
    browser.shows("complete")
    assert browser.run("return document.getElementById('log').textContent").endswith("line 2\n20%")
    assert browser.run("return window.same")
    (site.folder / "lines").unlink()


def test_a_click_kills_pauses_and_resumes(browser: Browser, site: QueueSite, web: Web) -> None:
    browser.open(web.address)
    id = site.shell("sleep 60")
    site.until(id, "running")
    browser.click(f"jobs-{id}-pause")
    site.until(id, "paused")
    browser.click(f"jobs-{id}-resume")
    site.until(id, "running")
    browser.click(f"jobs-{id}-kill")
    assert browser.agree() == f"Kill job {id}?"
    site.until(id, "killed")
    browser.shows("killed")


def test_the_keyboard_keeps_its_place_while_the_page_changes(browser: Browser, site: QueueSite, web: Web) -> None:
    browser.open(web.address)
    id = site.shell("sleep 60")
    site.until(id, "running")
    browser.shows("running")
    button = f"jobs-{id}-kill"
    browser.on(button, "focus")
    assert browser.run("return document.activeElement.id") == button
    site.act("pause", id)
    browser.shows("paused")
    assert browser.run("return document.activeElement.id") == button


def test_the_broker_restarts_and_the_page_says_so_and_goes_on(browser: Browser, site: QueueSite, web: Web) -> None:
    browser.open(web.address)
    browser.shows("4 free")
    site.kill_broker()
    browser.shows("The broker ended")
    site.ensure_broker()
    site.shell("sleep 60", name="after")
    assert "The broker ended" not in browser.shows("after", "1 held")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_everybody_can_read_it_at_every_size(browser: Browser, site: QueueSite, web: Web, dark: bool) -> None:
    with site.occupied("3"):
        site.submit_all([["sleep", "60"]] * 2, name="train", request={"devices": ["0", "1"]})
        job = site.shell("echo hello; sleep 60", request={"devices": ["2"]}, name="a-name-that-is-long-" * 10)
        site.said(job, "hello")
        site.shell("true", request={"gpus": 4}, note="waits")
        site.end(site.shell("true", request={"gpus": 0}))
        for size, (width, height) in SIZES.items():
            browser.size(width, height, dark)
            browser.open(web.address)
            browser.shows("3 held, 1 outside; 1 waiting", "complete")
            assert browser.findings() == []
            _look(browser, f"{size}-{'dark' if dark else 'light'}")
            browser.open(f"{web.address.partition('?')[0]}jobs/{job}")
            browser.shows("hello")
            assert browser.findings() == []
            _look(browser, f"{size}-{'dark' if dark else 'light'}-job")
    browser.size(*SIZES["desk"])


def _look(browser: Browser, name: str) -> None:
    if PICTURES:
        browser.driver.save_screenshot(f"{PICTURES}/{name}.png")


def test_a_page_of_a_server_that_is_gone_says_so(browser: Browser, site: QueueSite, web: Web) -> None:
    from support.web_site import start_web

    other = start_web(site)
    browser.open(other.address)
    browser.shows("4 free")
    other.process.terminate()
    browser.shows("The connection is lost")
    browser.open("about:blank")
    assert all("ERR_CONNECTION_REFUSED" in one or "ERR_INCOMPLETE" in one for one in browser.complaints())
    browser.hosts()


@needs_root
def test_a_job_of_another_user_has_no_button_and_the_request_by_hand_is_refused(browser: Browser, web: Web) -> None:
    system = SystemSite()
    try:
        system.start_broker()
        mine = system.add(system.alice, "sleep 60")["ok"]["first"]
        theirs = system.add(system.bob, "sleep 60")["ok"]["first"]
        words = [*becoming(system.alice.pw_uid), system.python_of_all, "-m", "gpulease", "web", "--json"]
        process = system.popen(system.namespace.words(*words, "--port", "0", "--actions"), cwd="/")
        page = Web(process)
        browser.open(page.address)
        wait_until(lambda: browser.run(f"return !!document.getElementById('jobs-{mine}-kill')"))
        browser.shows("bob")
        assert not browser.run(f"return document.querySelector('#jobs-{theirs} button')")
        token = browser.run("return document.querySelector('input[name=token]').value")
        answer = page.act(theirs, "kill", token)
        assert (answer.status, answer.text.partition(".")[0]) == (403, f"Job {theirs} is not yours")
        states = {job["id"]: job["state"] for job in system.jobs()}
        assert states[theirs] in ("running", "waiting")
        browser.open("about:blank")
        browser.hosts()
    finally:
        system.close()
