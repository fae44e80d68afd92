"""Writes the folders and files of gpulease into docs/architecture/overview.md, from the first sentences of modules.

python tools/house_page.py          write them
python tools/house_page.py --check  fail when the page says something else
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "gpulease"
PAGE = ROOT / "docs" / "architecture" / "overview.md"
BEGIN, END = "<!-- {}: python tools/house_page.py -->\n", "<!-- end of {} -->\n"
FOREIGN = "compat/shims/"  # files of other tools' names, for other Pythons
# Every module, below src/gpulease and without `.py`.
FILES = sorted(
    name
    for path in SOURCE.rglob("*.py")
    if not (name := str(path.relative_to(SOURCE))[:-3]).startswith((FOREIGN, "native/"))
)
# As they are read: what is used first, what everything stands on last.
ORDER = (
    *("", "cli", "cli/commands", "cli/install", "tui", "web", "compat", "compat/sge", "api", "pool", "client", "hosts"),
    *("slurm", "broker", "broker/core", "broker/core/state", "broker/edge", "broker/agent", "broker/launcher"),
    *("broker/children", "broker/store", "broker/neighbours", "notices", "simulator", "system", "render", "planner"),
    *("protocol", "model"),
)


def of_package(file: str) -> str:
    return file.rpartition("/")[0]


def imported_files(file: str) -> set[str]:
    """What it imports of gpulease: under TYPE_CHECKING and inside functions too, but for the package's own names."""
    found: set[str] = set()
    for node in ast.walk(_parsed(file)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {one for name in names if name.startswith("gpulease.") and (one := _file_of(name))}
    return found


def _file_of(name: str) -> str:
    """`gpulease.client.connection.Client` -> `client/connection`; nothing for names of the package itself."""
    parts = name.split(".")[1:]
    for count in range(len(parts), 0, -1):
        path = "/".join(parts[:count])
        if path in FILES:
            return path
        if f"{path}/__init__" in FILES:
            return f"{path}/__init__"
    return ""


def sentence(file: str) -> str:
    """What the module says of itself first."""
    text = " ".join((ast.get_docstring(_parsed(file)) or "").partition("\n\n")[0].split())
    end = next(
        (at for at, letter in enumerate(text) if letter == "." and text[at + 1 : at + 2] in ("", " ")), len(text)
    )
    said = text[: end + 1].removeprefix("PURE: ")
    return said[:1].upper() + said[1:] if text.startswith("PURE: ") else said


def _parsed(file: str) -> ast.Module:
    return ast.parse((SOURCE / f"{file}.py").read_text(encoding="utf-8"))


def packages() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in FILES:
        found.setdefault(of_package(file), []).append(file)
    assert set(found) == set(ORDER), f"ORDER has {set(found) ^ set(ORDER)} too many or too few"
    return {package: found[package] for package in ORDER}


def rooms() -> str:
    """A line for each: its files and what it is for; and a line for each: which others it imports."""
    tree, imports = [], []
    for package, names in packages().items():
        depth, leaf = package.count("/") + bool(package), package.rpartition("/")[2] or "gpulease"
        count = sum(not name.endswith("__init__") for name in names)
        said = sentence(f"{package}/__init__" if package else "__init__")
        tree.append(f"{'  ' * depth}{leaf}/".ljust(18) + f"{count:3}  {said}")
        others = {of_package(one) for name in names if name != "__init__" for one in imported_files(name)}
        imports.append(f"{package or 'gpulease'}".ljust(18) + " ".join(sorted(others - {package, ""})))
    first = "```text\n" + "\n".join(tree) + "\n```\n"
    return (
        f"{first}\nWhich folders each folder imports, besides its own files and `errors`:\n\n```text\n"
        + "\n".join(line.rstrip() for line in imports)
        + "\n```\n"
    )


def files() -> str:
    parts = []
    for package, names in packages().items():
        parts.append(f"### {package or 'gpulease'}\n\n| file | what it is for |\n| --- | --- |")
        parts[-1] += "".join(
            f"\n| [`{name.rpartition('/')[2]}`](../../src/gpulease/{name}.py) | {_in_a_cell(sentence(name))} |"
            for name in names
            if not name.endswith("__init__")
        )
    return "\n\n".join(parts) + "\n"


def _in_a_cell(text: str) -> str:
    return text.replace("|", "\\|")


def page() -> str:
    """The page as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    for name, written in (("rooms", rooms()), ("files", files())):
        before, begin, rest = text.partition(BEGIN.format(name))
        _, end, after = rest.partition(END.format(name))
        assert begin, f"{PAGE.name} has no place for the {name}"
        assert end, f"{PAGE.name} has no place for the {name}"
        text = f"{before}{begin}\n{written}\n{end}{after}"
    return text


def main() -> int:
    if "--check" in sys.argv:
        return 0 if PAGE.read_text(encoding="utf-8") == page() else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
