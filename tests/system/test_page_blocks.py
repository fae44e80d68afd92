"""Every command block of a page runs as it stands, unless a comment above it says why it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.blocks import Block, Reader, blocks
from support.site import Site, fresh_site  # noqa: F401  # pytest finds the fixture here

ROOT = Path(__file__).parents[2]
# Pages whose blocks another test runs, with more than an exit code to look at.
ELSEWHERE = {
    "README.md": "test_first_page",
    "docs/tutorial/first-steps.md": "test_tutorial",
    "docs/how-to/ci-runners.md": "test_first_day_pages",
    "docs/how-to/conda.md": "test_first_day_pages",
    "docs/how-to/containers.md": "test_first_day_pages",
    "docs/how-to/from-gpuget.md": "test_how_to_examples",
    "docs/how-to/from-sge-template.md": "test_sge_page",
    "docs/how-to/jupyter.md": "test_first_day_pages",
    "docs/how-to/vscode.md": "test_first_day_pages",
}
# Pages whose blocks nobody has marked yet. A page leaves this list when it runs, and none enters it.
NOT_YET = {
    "docs/concepts/devices.md",
    "docs/concepts/leases.md",
    "docs/concepts/security.md",
    "docs/figures.md",
    "docs/how-to/beside-other-tools.md",
    "docs/how-to/from-gpulimit.md",
    "docs/how-to/from-gpuselect.md",
    "docs/how-to/from-safe-gpu.md",
    "docs/how-to/from-slurm.md",
    "docs/how-to/install.md",
    "docs/how-to/jobs-after-logout.md",
    "docs/how-to/limits.md",
    "docs/how-to/metrics.md",
    "docs/how-to/notices.md",
    "docs/how-to/one-line-for-all-hosts.md",
    "docs/how-to/packing.md",
    "docs/how-to/pool.md",
    "docs/how-to/queue.md",
    "docs/how-to/several-hosts.md",
    "docs/how-to/several-users.md",
    "docs/how-to/simulate.md",
    "docs/how-to/slurm.md",
    "docs/how-to/top.md",
    "docs/how-to/usage.md",
    "docs/how-to/web.md",
    "docs/reference/drop-ins.md",
    "docs/reference/engines.md",
    "docs/reference/parameters.md",
    "docs/reference/policy.md",
    "docs/reference/pool.md",
    "docs/reference/python.md",
    "docs/reference/quantities.md",
    "docs/reference/settings.md",
    "docs/reference/simulation.md",
    "docs/reference/subscriptions.md",
}
PAGES = [
    str(path.relative_to(ROOT))
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    if any(blocks(path.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("page", sorted({*PAGES} - {*ELSEWHERE} - NOT_YET))
def test_every_block_runs_as_it_stands(page: str, site: Site) -> None:
    reader = Reader(site)
    for block in blocks((ROOT / page).read_text(encoding="utf-8")):
        if not block.not_run:
            assert reader.type(block) == ""


def test_what_changes_the_machine_is_never_typed(site: Site) -> None:
    reader = Reader(site)
    for text in ("sudo true", "cp a /etc/b", "gpulease install --system", "true   # as root", "curl https://x.org"):
        assert "a test does not type" in reader.type(Block(1, "sh", text, ""))


def test_a_block_is_found_with_the_reason_why_it_cannot_run() -> None:
    text = "```sh\none\n```\n<!-- not run: needs\n two -->\n  ```bash\n  three\n   four\n  ```\n\n```text\nfive\n```\n"
    assert list(blocks(text)) == [Block(1, "sh", "one\n", ""), Block(6, "bash", "three\n four\n", "needs\n two")]


def test_a_block_that_fails_is_named_by_its_line(site: Site) -> None:
    reader = Reader(site)
    assert reader.type(Block(7, "sh", "gpulease run -- true\n", "")) == ""
    assert reader.type(Block(7, "sh", "false\ntrue\n", "")).startswith("line 7: exit code 1")
    assert "ZeroDivisionError" in reader.type(Block(7, "python", "1 / 0", ""))
