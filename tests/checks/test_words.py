"""The words are plain: `tools/words.py` has the phrases that we do not use, and what to write instead.

It reads the pages, the docstrings, and the strings of the program that look as if people read them.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import words  # noqa: E402

# How many such phrases a folder may still have. Lower a number whenever you can; a folder that is not here has none.
AT_MOST = {
    "docs": 2,
    "docs/architecture": 3,
    "docs/concepts": 12,
    "docs/decisions": 4,
    "docs/how-to": 1,
    "docs/reference": 21,
    "src/gpulease": 1,
    "src/gpulease/api": 19,
    "src/gpulease/broker": 23,
    "src/gpulease/cli": 34,
    "src/gpulease/client": 12,
    "src/gpulease/compat": 16,
    "src/gpulease/hosts": 7,
    "src/gpulease/model": 2,
    "src/gpulease/notices": 4,
    "src/gpulease/planner": 5,
    "src/gpulease/pool": 3,
    "src/gpulease/render": 10,
    "src/gpulease/simulator": 3,
    "src/gpulease/slurm": 10,
    "src/gpulease/system": 8,
    "src/gpulease/tui": 7,
    "src/gpulease/web": 18,
}


def test_no_folder_has_more_phrases_that_we_do_not_use() -> None:
    found: dict[str, list[words.Hit]] = defaultdict(list)
    for text in words.texts():
        found[words.folder(text.file)] += list(words.hits(text))
    for folder, hits in found.items():
        assert len(hits) <= AT_MOST.get(folder, 0), "\n".join(map(str, hits))


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("Whoever waits can ask why.", "Whoever"),
        ("Who is passed by shorter requests gets it.", "Who is passed by shorter requests gets it."),
        ("It holds. Who waits there goes first.", ". Who waits there goes first."),
        ("The user is told, then it is tried anew.", "told"),
        ("'x' is no job id and no range.", "is no job"),
        ("It is number 3 in the line.", "the line"),
        ("It takes a look at the device.", "a look"),
        ("One thing; a second one; a third.", "; a second one;"),
        ("No job is as was asked.", "as was asked"),
        ("None could be had in vain.", "be had"),
    ],
)
def test_a_phrase_is_found(text: str, phrase: str) -> None:
    assert next(words.hits(words.Text("x.md", 1, "page", text))).phrase == phrase


@pytest.mark.parametrize(
    "text",
    [
        "There is no such job.",
        "Who uses this GPU?",
        "See the line of the log, or the command line.",
        "The field `line` and `is told` are code.",
        "A user who is not root looks at the page.",
        "It is no longer there; nothing else is.",
    ],
)
def test_plain_words_are_not(text: str) -> None:
    assert list(words.hits(words.Text("x.md", 1, "page", text))) == []


def test_pages_and_programs_are_read_as_people_see_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text("# Head\n\n- one `anew`\n- two\n\n```sh\nwhoever\n```\n| cell | anew |\n")
    (tmp_path / "program.py").write_text(
        '"""Read anew."""\nfrom gpulease.errors import NotFound\n'
        'raise NotFound(f"Job {1} is gone.", "List them with `gpulease ls`.")\n'
        'parser.add_argument(help="how many there are")\nprint("key", "SELECT one thing")\n'
    )
    found = [(text.line, text.kind, text.text) for text in words.texts(["page.md", "program.py"])]
    assert found == [
        (1, "page", "Head"),
        (3, "page", "one CODE"),
        (4, "page", "two"),
        (9, "page", "cell"),
        (9, "page", "anew"),
        (1, "docstring", "Read anew."),
        (3, "error", "Job … is gone."),
        (3, "error", "List them with `gpulease ls`."),
        (4, "help", "how many there are"),
    ]
    assert [(hit.text.line, hit.phrase) for text in words.texts(["."]) for hit in words.hits(text)] == [
        (9, "anew"),
        (1, "anew"),
    ]
