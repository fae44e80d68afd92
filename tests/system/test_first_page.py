"""The commands of the tutorial, and README's way to a GPU for a script, do what the pages say."""

from __future__ import annotations

import re
from pathlib import Path

from support.site import Site, fresh_site  # noqa: F401  # pytest finds the fixture here

ROOT = Path(__file__).parents[2]


def test_the_tutorial_runs_as_it_stands(site: Site) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/tutorial/first-steps.md").read_text(), re.DOTALL)
    assert blocks[0].strip() == "gpulease simulate -n 4"
    seen = 'until [ "$(gpulease status --fresh --count outside)" = 1 ]; do sleep 0.1; done'
    blocks[2] = blocks[2].replace("sleep 300 &", f"sleep 300 >/dev/null 2>&1 &\n{seen}")  # a person looks later
    done = site.bash("\n".join(f"echo '== {number}'\n{block}" for number, block in enumerate(blocks[1:], 2)))
    reply = dict(re.findall(r"== (\d+)\n(.*?)(?=== |\Z)", done.stdout, re.DOTALL))
    assert (done.returncode, len(reply)) == (0, len(blocks) - 1), done.stderr
    assert "outside" in reply["3"]
    assert re.fullmatch(r"\s*[1-3],[1-3]\n", reply["4"])
    assert re.search(r"GPU [1-3],[1-3]: GPU-[^,]+,GPU-", reply["8"])
    assert "3 complete" in reply["9"]


def test_readmes_line_points_cuda_at_the_gpu_and_ends_the_script_when_there_is_none(site: Site) -> None:
    line = re.search(r"rest of a script \| `(.*?)` \|\n", (ROOT / "README.md").read_text())
    assert line
    take = line[1].replace("\\|", "|")
    done = site.bash(f'{take}; echo "$CUDA_VISIBLE_DEVICES"')
    assert re.fullmatch(r"GPU-\S+\n", done.stdout), done.stderr
    for wrong, code in (("--model H100 --no-wait", 1), ("--name A100", 2)):
        done = site.bash(f"{take.replace('--export', f'--export {wrong}')}; echo went on")
        assert (done.stdout, done.returncode) == ("", code), done.stderr
