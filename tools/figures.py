"""Run every program in bench/ and write docs/figures.md from what they print.

    python tools/figures.py [--quick]
    python tools/figures.py [--quick] --output FILE BENCH...

All figures on the page are of one run, on one machine. If a bench fails, nothing is written.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench" / "common"))

from report import Figure, shown

BENCHES = sorted(path.stem for path in (ROOT / "bench").glob("*.py"))
PAGE = ROOT / "docs" / "figures.md"

HEAD = """\
# Figures

`make figures` runs every program in `bench/` and writes this page. It is not edited by hand.

{facts}

How to read the tables:

- A figure is the median over the rounds. Eight of ten rounds lie in the range beside it.
- `a / b` is what `a` takes divided by what `b` takes. Both are measured in turn, round after round.
- Python's byte-code is compiled before, of gpulease and of what it is compared with.
- The GPUs are simulated. Everything else is real: processes, sockets, disks, Redis, Slurm, ssh.
"""
SHORT = """
**These figures are of a short run (`--quick`), which only shows that the programs work. Do not quote them.**
"""
TABLE = """\
| figure | value | range | rounds | better | target |
| --- | --- | --- | --- | --- | --- |
"""

Document = dict[str, Any]


def facts() -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "Machine": f"{len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB of memory",
        "Python": platform.python_version(),
        "Kernel": f"{platform.system()} {platform.release()}",
        "Date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "Commit": commit(),
        "Load before the run": f"{os.getloadavg()[0]:.1f}",
    }


def commit() -> str:
    """Which version was measured; `unknown` outside of a checkout and without git."""
    if shutil.which("git") is None:
        return "unknown"
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.stdout.strip().replace("-dirty", " with changes") if done.returncode == 0 else "unknown"


def run(name: str, quick: bool) -> Document:
    """What a bench prints; its tables pass through to stderr."""
    words = [sys.executable, str(ROOT / "bench" / f"{name}.py"), "--json", *(["--quick"] if quick else [])]
    print(f"== bench/{name}.py", file=sys.stderr, flush=True)
    began = time.monotonic()
    done = subprocess.run(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    print(f"== bench/{name}.py took {time.monotonic() - began:.0f} s\n", file=sys.stderr, flush=True)
    if done.returncode:
        sys.exit(f"figures: bench/{name}.py ended with {done.returncode}, so {PAGE.name} is not written.")
    document: Document = json.loads(done.stdout)
    return document


def page(about: dict[str, str], documents: Sequence[Document]) -> str:
    lines = HEAD.format(facts="\n".join(f"- {name}: {value}" for name, value in about.items()))
    if any(document["quick"] for document in documents):
        lines += SHORT
    return lines + "".join(section(document) for document in documents)


def section(document: Document) -> str:
    command = f"python bench/{document['bench']}{' --quick' if document['quick'] else ''}"
    text = f"\n## {document['bench']}\n\n{document['about']}\n\n```sh\n{command}\n```\n\n{TABLE}"
    text += "".join(rows([Figure(**one) for one in document["figures"]], judged=not document["quick"]))
    if document["left_out"]:
        text += f"\nNot measured, because it is not installed or the run is short: {', '.join(document['left_out'])}.\n"
    return text


def rows(figures: Sequence[Figure], judged: bool) -> Iterator[str]:
    for figure in figures:
        span = f"{shown(figure.low)} to {shown(figure.high)}" if figure.rounds > 1 else ""
        target = figure.bound
        if judged and target:
            target += ", reached" if figure.reached else ", **not reached**"
        value = f"{shown(figure.value)} {figure.unit}"
        yield f"| {figure.what} | {value} | {span} | {figure.rounds} | {figure.better} | {target} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the short form of each bench: figures that mean nothing")
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE")
    parser.add_argument("benches", nargs="*", metavar="BENCH", help=f"of {', '.join(BENCHES)}; all, if none is named")
    options = parser.parse_args()
    if unknown := set(options.benches) - set(BENCHES):
        sys.exit(f"figures: there is no bench {', '.join(sorted(unknown))}.")
    if options.benches and options.output == PAGE:
        sys.exit(f"figures: {PAGE.name} has the figures of all benches. Name another file with --output.")
    about = facts()
    documents = [run(name, options.quick) for name in options.benches or BENCHES]
    options.output.write_text(page(about, documents), encoding="utf-8")
    print(f"figures: {options.output} is written.", file=sys.stderr)


if __name__ == "__main__":
    main()
