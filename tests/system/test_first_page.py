"""The README's way to a GPU for a script does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

from support.site import Site, fresh_site  # noqa: F401  # pytest finds the fixture here

ROOT = Path(__file__).parents[2]


def test_readmes_line_points_cuda_at_the_gpu_and_ends_the_script_when_there_is_none(site: Site) -> None:
    line = re.search(r"rest of a script \| `(.*?)` \|\n", (ROOT / "README.md").read_text())
    assert line
    take = line[1].replace("\\|", "|")
    done = site.bash(f'{take}; echo "$CUDA_VISIBLE_DEVICES"')
    assert re.fullmatch(r"GPU-\S+\n", done.stdout), done.stderr
    for wrong, code in (("--model H100 --no-wait", 1), ("--name A100", 2)):
        done = site.bash(f"{take.replace('--export', f'--export {wrong}')}; echo went on")
        assert (done.stdout, done.returncode) == ("", code), done.stderr
