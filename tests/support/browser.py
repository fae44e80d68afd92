"""Debian's Chromium without a window, and what is checked of every page in it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from support.needs import program
from support.waiting import wait_until

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
LOGS = {"browser": "ALL", "performance": "ALL"}

# What a reader without eyes, or with weak ones, would stumble over. Each finding is a sentence.
CHECKS = """
const found = [];
const seen = (one) => one.checkVisibility({ visibilityProperty: true, opacityProperty: true });
const name = (one) => (one.getAttribute("aria-label") || one.textContent || one.title || "").trim();
for (const one of document.querySelectorAll("button, a, input:not([type=hidden]), [role=region], pre, section"))
  if (!name(one) && !one.labels?.length) found.push("no name: " + one.outerHTML.slice(0, 80));
for (const one of document.querySelectorAll("section"))
  if (!document.getElementById(one.getAttribute("aria-labelledby"))) found.push("no heading: " + one.className);
for (const one of document.querySelectorAll("th")) if (!one.scope) found.push("no scope: " + one.textContent);
for (const one of document.querySelectorAll("svg"))
  if (one.getAttribute("aria-hidden") !== "true" && !one.querySelector("title")) found.push("a picture without words");
const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
for (const id of new Set(ids)) if (ids.filter((one) => one === id).length > 1) found.push("twice: " + id);
if (!document.documentElement.lang || !document.title) found.push("no language or no title");
if (document.querySelectorAll("h1").length !== 1 || document.querySelectorAll("main").length !== 1)
  found.push("not one h1 and one main");
let level = 1;
for (const one of document.querySelectorAll("h1, h2, h3")) {
  const next = Number(one.tagName[1]);
  if (next > level + 1) found.push("a heading is left out before " + one.textContent);
  level = next;
}
if (document.documentElement.scrollWidth > innerWidth) found.push("wider than the window");
const parsed = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const light = (parts) => {
  const [r, g, b] = parts.map((part) => (part /= 255) <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (one) => {
  for (; one; one = one.parentElement) {
    const parts = parsed(getComputedStyle(one).backgroundColor);
    if (parts.length === 3 || parts[3] > 0) return parts.slice(0, 3);
  }
  return [255, 255, 255];
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const one = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !seen(one) || one.closest(".unseen, noscript, .skip")) continue;
  const pair = [light(parsed(getComputedStyle(one).color).slice(0, 3)), light(ground(one))].sort((a, b) => b - a);
  const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
  if (contrast < 4.5) found.push(`contrast ${contrast.toFixed(1)}: ${walker.currentNode.data.slice(0, 40)}`);
}
return found;
"""


class Browser:
    def __init__(self) -> None:
        assert CHROMIUM
        assert DRIVER
        options = webdriver.ChromeOptions()
        self._profile = tempfile.mkdtemp(prefix="gpulease-chromium-")
        for option in (*OPTIONS, f"--user-data-dir={self._profile}"):
            options.add_argument(option)
        options.binary_location = CHROMIUM
        options.set_capability("goog:loggingPrefs", LOGS)
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))

    def open(self, address: str) -> None:
        self.driver.get(address)

    def size(self, width: int, height: int, dark: bool = False) -> None:
        about = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", about)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def shows(self, *words: str) -> str:
        """The visible text, once all these words are in it."""
        try:
            return wait_until(lambda: text if all(word in (text := self.text) for word in words) else None)
        except AssertionError:
            raise AssertionError(f"{words} are not all in the page: {self.text}") from None

    @property
    def text(self) -> str:
        return str(self.driver.execute_script("return document.body.innerText"))

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def click(self, id: str) -> None:
        self.on(id, "click")

    def on(self, id: str, method: str) -> None:
        """Calls it, once the element is there."""
        wait_until(lambda: self.driver.find_elements(By.ID, id))
        self.run(f"document.getElementById({json.dumps(id)}).{method}()")

    def agree(self) -> str:
        """To the question that is asked; what it was."""

        def asked() -> Any:
            try:
                return self.driver.switch_to.alert
            except Exception:
                return None

        alert = wait_until(asked)
        text = str(alert.text)
        alert.accept()
        return text

    def findings(self) -> list[str]:
        found: list[str] = self.run(CHECKS)
        return found

    def _log(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.driver.get_log(kind)  # type: ignore[no-untyped-call]
        return found

    def complaints(self) -> list[str]:
        """What the console says since it was last asked."""
        return [entry["message"] for entry in self._log("browser")]

    def hosts(self) -> set[str]:
        """Who was asked for something since that was last asked; without what is of the browser itself."""
        found = set()
        for entry in self._log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                address = urlsplit(message["params"]["request"]["url"])
                found |= {address.netloc} if address.scheme in ("http", "https", "ws", "wss") else set()
        return found

    def close(self) -> None:
        self.driver.quit()
        shutil.rmtree(self._profile, ignore_errors=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program("chromium")
    program("chromedriver")
    made = Browser()
    try:
        yield made
    finally:
        made.close()
