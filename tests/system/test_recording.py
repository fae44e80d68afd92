"""The recording in the README: made by a tool from a real run, and of a kind that GitHub shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.needs import NAMESPACES, needs, needs_root

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "pictures" / "recording.svg"
SVG = "{http://www.w3.org/2000/svg}"
ALLOWED = {f"{SVG}{tag}" for tag in ("svg", "title", "desc", "style", "rect", "text", "tspan")}
STORY = (
    r"alice@lab:~\$ gpulease run .* -- python train\.py &.*\[1\] (?P<pid>\d+).*kill -9 (?P=pid).*Killed.*"
    r"bob@lab:~\$ gpulease run -- python eval\.py.*free.*likely in.*got GPU 0 after.*eval\.py runs on GPU 0"
)


def still(path: Path) -> str:
    """What is seen where nothing moves."""
    root = ElementTree.fromstring(path.read_text())
    texts = [text for text in root.iter(f"{SVG}text") if "h" not in text.get("class", "").split()]
    return "\n".join("".join(text.itertext()) for text in texts)


def check(path: Path) -> None:
    text = path.read_text()
    root = ElementTree.fromstring(text)
    assert {element.tag for element in root.iter()} <= ALLOWED  # no script, nothing from elsewhere
    assert "url(" not in text
    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")
    assert "prefers-reduced-motion" in str(root.findtext(f"{SVG}style"))
    assert len(text.encode()) < 200_000
    assert re.search(STORY, still(path), re.DOTALL), still(path)
    assert "…" not in still(path)


def test_the_readme_shows_the_recording_and_says_in_words_what_is_seen() -> None:
    check(PICTURE)
    found = re.search(r"!\[(.*?)\]\(docs/pictures/recording\.svg\)", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found
    assert "kill -9" in found[1]


@needs_root
@needs("tmux")
def test_the_tool_records_two_users_and_one_gpu(tmp_path: Path) -> None:
    made = tmp_path / "recording.svg"
    words = [sys.executable, str(ROOT / "tools" / "recording.py"), str(made), "--quick"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    if NAMESPACES in done.stderr:
        pytest.skip(NAMESPACES)
    assert done.returncode == 0, done.stderr
    check(made)
