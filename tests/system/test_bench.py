"""Every program in bench/ runs to its end in its short form, and prints the figures that docs/figures.md states."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.machine import plain_environment
from support.needs import needs, needs_root
from support.slurm_box import needs_slurm

ROOT = Path(__file__).parents[2]
BENCHES = sorted(path.stem for path in (ROOT / "bench").glob("*.py"))
NEEDS: dict[str, list[pytest.MarkDecorator]] = {
    "hostile": [needs_root],
    "hosts": [needs("ssh", "ssh-keygen", "sshd", "ip")],
    "leases": [needs("redis-server")],
    "slurm": [needs_slurm],
}
PATIENCE = 100  # seconds; a machine that runs tests may be slow


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    done = subprocess.run(
        command, env=plain_environment(), cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def stated(bench: str) -> list[str]:
    """The figures of a bench on the page."""
    _, _, section = (ROOT / "docs" / "figures.md").read_text().partition(f"\n## {bench}.py\n")
    rows = re.findall(r"^\| (.*?) \|", section.partition("\n## ")[0], re.MULTILINE)
    return [row for row in rows if row not in ("figure", "---")]


def kind(what: str) -> str:
    """A short run has other sizes."""
    return re.sub(r"[\d,]*\d", "N", what)


@pytest.mark.parametrize("bench", [pytest.param(name, marks=NEEDS.get(name, [])) for name in BENCHES])
def test_it_runs_and_prints_every_figure_that_the_page_states(bench: str) -> None:
    done = run(f"bench/{bench}.py", "--quick", "--json")
    document: dict[str, Any] = json.loads(done.stdout)
    printed = [figure["what"] for figure in document["figures"]]
    assert printed
    assert [what for what in printed if f"figure: {what}: " not in done.stderr] == []
    kinds = set(map(kind, printed))
    assert stated(bench)
    assert [what for what in stated(bench) if kind(what) not in kinds and not left_out(document, what)] == []


def left_out(document: dict[str, Any], what: str) -> bool:
    return any(peer in what for peer in document["left_out"])


def test_a_replay_in_which_nobody_waits_has_no_ratios_and_ends_well() -> None:
    """Before, it divided by greedy's wait, which was zero."""
    done = run("bench/replay.py", "--quick", "--jobs", "2", "--ensemble", "2")
    assert re.search(r"declared none +0 +0 +- +-", done.stdout)
    assert "figure:" not in done.stdout


def test_the_page_is_written_from_what_the_benches_print(tmp_path: Path) -> None:
    page = tmp_path / "figures.md"
    run("tools/figures.py", "--quick", "--output", str(page), "plan_cost", "replay")
    text = page.read_text()
    assert text.count("\n## ") == 2
    assert "short run" in text
    assert re.search(r"^- Machine: \d+ cores, \d+ GiB of memory$", text, re.MULTILINE)
    assert re.search(r"^\| one plan, 8 GPUs, 100 waiting \| [\d.,]+ ms \|  \| 1 \| lower \|  \|$", text, re.MULTILINE)


@pytest.mark.parametrize("words", [["--quick", "replay"], ["--quick", "--output", "/dev/null", "nonsense"]])
def test_the_page_of_all_benches_is_never_written_with_some(words: list[str]) -> None:
    before = (ROOT / "docs" / "figures.md").read_bytes()
    done = subprocess.run([sys.executable, "tools/figures.py", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("figures: ")
    assert (ROOT / "docs" / "figures.md").read_bytes() == before
