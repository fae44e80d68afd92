"""Which part of gpulease imports which, by layers: everything that an `import` says, wherever it stands.

python tools/import_graph.py          print it
python tools/import_graph.py --write  write it into docs/architecture/overview.md
python tools/import_graph.py --check  fail when that page says something else
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "gpulease"
PAGE = ROOT / "docs" / "architecture" / "overview.md"
BEGIN, END = "<!-- python tools/import_graph.py --write -->\n", "<!-- end of what it writes -->\n"
# From the top; a part imports from its own layer and from those below.
LAYERS = {
    "faces": ("__main__", "cli", "compat", "installation", "top", "web"),
    "verbs": (
        "allocation_keeper",
        "api",
        "event_choice",
        "transfer",
        "job_commands",
        "job_fields",
        "job_log",
        "lease_verbs",
        "looking_back",
        "leases",
        "metrics",
        "notifying",
        "placeholders",
        "pool",
        "queueing",
        "rebalancing",
        "submission",
        "waiting",
    ),
    "granting and reaching": (
        "allocation_nodes",
        "backends",
        "broker",
        "client",
        "absent_hosts",
        "host_watch",
        "hosts",
        "places",
        "slurm",
        "ssh",
        "subscription",
        "thread_client",
        "user_config",
    ),
    "keeping and seeing": (
        "config_file",
        "cuda_state",
        "execution",
        "identity",
        "short_lived",
        "neighbours",
        "notices",
        "probes",
        "simulation",
        "stores",
        "terminal",
        "wire",
    ),
    "deciding": (
        "allocation",
        "answers",
        "errors",
        "host_choice",
        "job",
        "job_selection",
        "job_words",
        "lifecycle",
        "messages",
        "model",
        "planner",
        "python_words",
        "quantities",
        "report",
        "request_fields",
        "selection",
        "shell_text",
        "spans",
        "device_kinds",
        "states",
        "sweep_values",
        "sweeps",
        "totals",
        "usage_sums",
        "visible",
    ),
}


class Import(NamedTuple):
    file: str  # below src/gpulease
    imported: str  # as gpulease.client

    @property
    def source(self) -> str:
        return self.file.partition("/")[0].removesuffix(".py")

    @property
    def target(self) -> str:
        return self.imported.split(".")[1]


@cache
def imports() -> list[Import]:
    """All within gpulease but those of the package itself, which is the list of public names."""
    found = {
        Import(str(file.relative_to(SOURCE)), name)
        for file in SOURCE.rglob("*.py")
        if file != SOURCE / "__init__.py"
        for name in imported_by(file)
        if name.startswith("gpulease.") and name.split(".")[1] in known_parts()
    }
    return sorted(found)


@cache
def parsed(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def imported_by(file: Path) -> set[str]:
    """Under TYPE_CHECKING and inside functions too."""
    names: set[str] = set()
    for node in parsed(file):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name} imports relatively"
            module = node.module or ""
            names |= {f"{module}.{alias.name}" for alias in node.names} if module == "gpulease" else {module}
    return names


@cache
def known_parts() -> set[str]:
    return {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}


def height(part: str) -> int:
    """Of its layer, from the bottom."""
    return next(number for number, parts in enumerate(reversed(LAYERS.values())) if part in parts)


def text() -> str:
    below: dict[str, set[str]] = {}
    for one in imports():
        if one.source != one.target:
            below.setdefault(one.source, set()).add(one.target)
    lines = []
    for layer, parts in LAYERS.items():
        lines.append(layer)
        lines += [f"  {part:<14} {' '.join(sorted(below.get(part, ())))}".rstrip() for part in parts]
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page as it should be."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{PAGE.name} has no place for the graph"
    assert end, f"{PAGE.name} has no place for the graph"
    return f"{before}{begin}\n```text\n{text()}```\n\n{end}{after}"


def main() -> int:
    if "--check" in sys.argv:
        return 0 if PAGE.read_text() == page() else 1
    if "--write" in sys.argv:
        PAGE.write_text(page())
    else:
        print(text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
