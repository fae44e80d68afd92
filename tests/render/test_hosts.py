"""All hosts as the page and `top` draw them: three, of which one is dead, with texts that would do harm."""

from __future__ import annotations

import io
from typing import Any

import pytest
from support.top_rows import EVERYTHING, NOW, device, lease, waiting

from gpulease.errors import HostUnavailable
from gpulease.hosts import hosts
from gpulease.render.terminal import Terminal, width_of
from gpulease.tui.entries import RecentLoad, entries
from gpulease.tui.layout import Scene, frame, most_scroll
from gpulease.tui.view import View, press
from gpulease.web.fragments import first_page, sections, status_text
from gpulease.web.picture import PagePicture, Viewer, seen_by

NASTY = "gpu3 says <script>alert(1)</script>\x1b[2J\u202e"


def answering(host: str, devices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    answer = {"devices": devices, "leases": [], "line": [], "line_length": 0, "simulated": False, **more}
    return {"host": host, "trouble": None, "next_step": None, "answer": answer}


THREE = (
    answering("gpu1", [device(0), device(1, state="leased"), device(2, state="outside"), device(3, state="draining")]),
    answering(
        "gpu2",
        [device(0, state="shared", processes=[{"user": "ada", "command": "secret", "pid": 1, "lease": None}])],
        leases=[lease(note="secret")],
        line=[waiting(note="secret")],
        line_length=7,
    ),
    {"host": "gpu3", "trouble": NASTY, "next_step": "Look.", "answer": None},
)


# -------------------------------------------------------------------- the page


def test_the_page_has_a_row_a_host_with_a_square_a_gpu() -> None:
    rows = sections(PagePicture({}, hosts=THREE), Viewer("ada"))["hosts"]
    assert list(rows) == ["gpu1", "gpu2", "gpu3"]
    for word in ("free", "held", "outside", "draining"):
        assert rows["gpu1"].count(f'class="gpu {word}"') == 1
    assert "1 free, 1 held, 1 outside, 1 draining" in rows["gpu1"]
    assert "<td>1 of 4</td><td>0</td>" in rows["gpu1"]
    assert "<td>0 of 1</td><td>7</td>" in rows["gpu2"]
    assert "ada 1" in rows["gpu2"]


def test_what_a_host_says_is_escaped_and_cleaned() -> None:
    odd = answering("gpu4", [device(0, state='"><b>', label="<i>", name="<u>")])
    picture = PagePicture({}, hosts=(*THREE, odd))
    page = first_page(picture, sections(picture, Viewer("ada")))
    assert "gpu3 says &lt;script&gt;alert(1)&lt;/script&gt; [2J" in page
    assert not any(sign in page for sign in ("<script>", "\x1b", "\u202e", "<b>", "<i>", "<u>"))
    text = status_text(picture, 0.0)
    assert "gpu3 says" in text
    assert text.replace("\n", "").isprintable()


def test_without_hosts_the_page_has_no_section_of_them() -> None:
    picture = PagePicture({})
    assert "Hosts" not in first_page(picture, sections(picture, Viewer("ada")))
    assert "HOST" not in status_text(picture, 0.0)


def test_a_public_page_hides_what_is_others_on_every_host() -> None:
    odd = answering("gpu4", [{"state": "free", "label": "0", "name": "A100"}])
    picture = PagePicture({}, hides=False, usage_shown="all", hosts=(*THREE, odd))
    shown = seen_by(picture, Viewer("", public=True)).hosts
    assert "secret" in repr(seen_by(picture, Viewer("ada")).hosts)
    assert "secret" not in repr(shown)
    assert [row["trouble"] for row in shown] == [None, None, "gpu3 gives no answer.", "gpu4 gives no answer."]
    assert shown[1]["answer"]["line_length"] == 7


# -------------------------------------------------------------------- top


def scene(rows: tuple[dict[str, Any], ...], note: str = "") -> Scene:
    return Scene(EVERYTHING, [], RecentLoad(), NOW, hosts=rows, hosts_note=note)


def shown(rows: tuple[dict[str, Any], ...], width: int = 80, height: int = 24, **more: Any) -> list[str]:
    view = View(page="hosts", scroll=more.pop("scroll", 0))
    lines = frame(scene(rows, **more), view, width, height, Terminal(io.StringIO()))
    return ["".join(text for text, _ in line).rstrip() for line in lines]


@pytest.mark.parametrize(("width", "height"), [(20, 5), (80, 24), (200, 60)])
def test_the_view_of_hosts_is_as_large_as_the_terminal_and_drives_nothing(width: int, height: int) -> None:
    lines = shown(THREE * 20, width, height)
    assert len(lines) == height
    assert all(width_of(line) <= width and line.isprintable() for line in lines)


def test_top_has_a_line_a_host() -> None:
    text = "\n".join(shown(THREE))
    assert "gpu1  4 A100  1     0     .LOD" in text
    assert "gpu2  1 A100  0     7     S      ada 1" in text
    assert "gpu3 says <script>alert(1)" in text
    assert ". free, L leased" in text


def test_without_hosts_top_says_how_to_name_them() -> None:
    assert "No hosts are known. Give" in "\n".join(shown((), note="No hosts are known. Give"))


def test_many_hosts_are_scrolled_to_the_last_one() -> None:
    many = tuple(answering(f"gpu{number}", [device(0)]) for number in range(60))
    view = View(page="hosts", scroll=1000)
    most = most_scroll(scene(many), view, 80, 24, Terminal(io.StringIO()))
    text = "\n".join(shown(many, scroll=most))
    assert "gpu59" in text
    assert ". free, L leased" in text


def test_h_opens_and_leaves_the_view_of_hosts() -> None:
    rows = entries(EVERYTHING, NOW)
    view, _ = press(View(), "h", rows, None, 10)
    assert view.page == "hosts"
    for key in ("h", "escape", "q"):
        back, action = press(view, key, rows, None, 10)
        assert (back.page, action) == ("table", None)
    assert press(view, "x", rows, None, 10)[0].question is None


# -------------------------------------------------------------------- another version


@pytest.mark.parametrize(
    "wrong", [{"devices": 7}, {"devices": [{"state": []}]}, {"leases": [{}]}, {"line_length": "x"}]
)
def test_a_status_with_rows_of_another_kind_is_trouble(wrong: dict[str, Any]) -> None:
    right = THREE[1]["answer"]
    assert hosts._checked("gpu2", "status", right) is right
    with pytest.raises(HostUnavailable, match="another version"):
        hosts._checked("gpu2", "status", {**right, **wrong})
