"""The table of docs/how-to/from-gpuget.md is true in every row."""

from __future__ import annotations

import re
from pathlib import Path

from support.recorded import calls_of
from support.site import Site, fresh_site  # noqa: F401  # pytest finds the fixture here

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "from-gpuget.md"

# What was typed -> a script in which what is typed now does that, and what it prints.
NOW = {
    "redis-server": ("", ""),
    "GPU.py --redis-manage-all": ("", ""),
    "GPU.py --redis-manage 0,2": (
        "gpulease get --devices 0,2; gpulease get --devices 0,2; gpulease get --devices 0,2 --no-wait; "
        "gpulease exclude 1,3; gpulease get --no-wait; gpulease include 1,3; gpulease get",
        r"0\n2\nexcluded GPU 1,3\nincluded GPU 1,3\n[13]\n$",
    ),
    "GPU.py --redis-manage-all --force": (
        "gpulease get --until-released; gpulease release --mine; gpulease get -n 4; gpulease release --all",
        r"\d\nreleased L\d+: GPU \d\n0,1,2,3\nreleased L\d+: GPU 0,1,2,3\n",
    ),
    "GPU.py --get": ("gpulease get; gpulease get --until-released", r"\d\n\d\n"),
    "GPUID=$(GPU.py --get)": ("GPUID=$(gpulease get); echo on $GPUID", r"on \d\n"),
    "read GPUID < <(GPU.py --get)": ("read GPUID < <(gpulease get); echo on $GPUID", r"on \d\n"),
    "GPU.py --release $GPUID": (
        "GPUID=$(gpulease get); gpulease release $GPUID; gpulease release --if-held $GPUID; echo $?",
        r"released L\d+: GPU \d\n0\n",
    ),
    "GPU.py --redis-purge": (
        "bash -c 'gpulease get --until-released; sleep 0'; gpulease release --mine --gone",
        r"\d\nreleased L\d+: GPU \d\n",
    ),
    "GPU.py --log": (
        "gpulease get; gpulease release --mine; gpulease events | tail -n 2",
        r"(?s).*L\d+ get, released by .*",
    ),
    "GPU.py --info": ("gpulease | head -n 1", r".*4 SIMULATED GPUs, 4 free"),
    "GPU.py --idle": ("gpulease status --list free; gpulease", r"(?s)0,1,2,3\n.*free"),
    "GPU.py --managed": ("gpulease status --list all; gpulease", r"(?s)0,1,2,3\n.*\n *3 "),
    "GPU.py --active": ("gpulease get --until-released; gpulease", r"(?s)\d\n.*leased.*reservation by"),
    "GPU.py --gpu-count": ("gpulease status --count all", r"4\n"),
    "GPU.py --redis-delete": ("gpulease get --until-released; gpulease release --mine", r"\d\nreleased L\d+: GPU \d\n"),
}


def rows() -> dict[str, tuple[str, str]]:
    lines = PAGE.read_text().partition("| you typed |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {typed.strip("` "): (now, same) for typed, now, same in cells}


def test_every_row_is_tried_with_the_words_of_the_page() -> None:
    assert rows().keys() == NOW.keys()
    for typed, (now, _) in rows().items():
        for words in re.findall(r"`([^`]+)`", now):
            assert words.removeprefix("--") in NOW[typed][0], typed


def test_what_was_typed_is_what_the_drop_in_takes() -> None:
    recorded = "\n".join(call.command for call in calls_of("gpuget"))
    for typed, (_, same) in rows().items():
        if same != "nothing":
            assert same.startswith(f"`{typed}`")
            options = re.findall(r"--[a-z-]+", typed)
            assert any(set(options) <= set(line.split()) for line in re.sub(r"[();=]", " ", recorded).splitlines())


def test_what_is_typed_now_does_the_same(site: Site) -> None:
    for typed, (script, pattern) in NOW.items():
        done = site.bash(f"export -f gpulease; {script}")
        assert re.match(pattern, done.stdout), (typed, done.stdout, done.stderr)
        site.run("release", "--all")
