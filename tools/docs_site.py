"""What MkDocs does beyond the pages of docs/: a first page from the README, the order, GitHub's anchors, the diagrams.

MkDocs calls the functions `on_…` (see `hooks` in mkdocs.yml).
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import posixpath
import re
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Pages that stand outside of docs/ because GitHub looks for them at the top -> their place on the site.
OUTSIDE = {
    "README.md": "index.md",
    "README.zh-CN.md": "zh-CN.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
}
SECTIONS = {
    "tutorial": "Tutorial",
    "how-to": "How to",
    "concepts": "Concepts",
    "reference": "Reference",
    "architecture": "Architecture",
    "decisions": "Decisions",
}
LINK = r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)"
CODE = r"^ *```[\s\S]*?^ *```$|`[^`\n]+`"
CODE_OR_LINK = re.compile(f"{CODE}|{LINK}", re.MULTILINE)  # what stands in code is no link

MERMAID = "11.9.0"  # of the major version that Material expects
MERMAID_SHA512 = "YdPXn9slEwO0omQfQIsW6vS84weVQftIyyTGAZCwM//MGhPzL1+l6vO6bkf0wnP4tHigH1alZ5Ooy3HXI2gOag=="
SCRIPT = "assets/mermaid.min.js"


def anchor(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


# ---------------------------------------------------------------- MkDocs calls these


def on_config(config: Any) -> Any:
    config.mdx_configs.setdefault("toc", {})["slugify"] = lambda text, _separator: anchor(text)
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for name, place in OUTSIDE.items():
        if (ROOT / name).exists():
            files.append(File.generated(config, place, content=at_the_top((ROOT / name).read_text(), name)))
    for folder, title in SECTIONS.items():
        if f"{folder}/index.md" not in files.src_uris:
            files.append(File.generated(config, f"{folder}/index.md", content=contents(folder, title)))
    if any("```mermaid" in path.read_text() for path in (ROOT / "docs").rglob("*.md")):
        files.append(File.generated(config, SCRIPT, content=mermaid()))
    config.nav = order(sorted(files.src_uris))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """What links to a file that is no page leads to the repository, if it is known where that is."""
    if page.file.src_uri in OUTSIDE.values():
        return markdown  # `at_the_top` did it
    return with_links(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """The program that draws diagrams is large: only pages that have one load it."""
    if 'class="mermaid"' not in output:
        return output
    path = posixpath.relpath(SCRIPT, posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace("</main>", f'</main><script src="{path}"></script>', 1)


# ---------------------------------------------------------------- pages and links


def at_the_top(text: str, name: str) -> str:
    return with_links(text, name, OUTSIDE[name])


def with_links(text: str, source: str, place: str) -> str:
    """The text of a file with its links as they must be at its place on the site."""

    def changed(found: re.Match[str]) -> str:
        if found[3]:
            return link(found, source, place)
        in_table = text.startswith("|", text.rfind("\n", 0, found.start()) + 1)
        return found[0].replace("\\|", "|") if in_table else found[0]  # GitHub wants `\|` in code of a table

    return CODE_OR_LINK.sub(changed, text)


def link(found: re.Match[str], source: str, place: str) -> str:
    picture, text, target = found.groups()
    path, mark, fragment = target.partition("#")
    if "://" in target or not path:
        return found.group()
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if (ROOT / wanted).is_dir() and wanted.startswith("docs/"):
        wanted += "/index.md"
    if wanted in OUTSIDE or wanted.startswith("docs/"):
        there = OUTSIDE.get(wanted, wanted.removeprefix("docs/"))
        return f"{picture}[{text}]({posixpath.relpath(there, posixpath.dirname(place) or '.')}{mark}{fragment})"
    return f"[{text}]({repository()}/blob/main/{wanted}{mark}{fragment})" if repository() else text


def repository() -> str:
    """Known where GitHub builds the site."""
    name = os.environ.get("GITHUB_REPOSITORY")
    return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}" if name else ""


def contents(folder: str, title: str) -> str:
    """The first page of a folder: what is in it."""
    pages = sorted((ROOT / "docs" / folder).glob("*.md"))
    lines = [f"- [{path.read_text().partition(chr(10))[0].lstrip('# ')}]({path.name})" for path in pages]
    return "\n".join([f"# {title}", "", *lines, ""])


def order(places: list[str]) -> list[Any]:
    pages = [place for place in places if place.endswith(".md")]
    top = [place for place in pages if "/" not in place and place not in OUTSIDE.values()]
    nav: list[Any] = [{"gpulease": "index.md"}, *(place for place in top if place == "contents.md")]
    for folder, title in SECTIONS.items():
        inside = [place for place in pages if place.startswith(f"{folder}/") and place != f"{folder}/index.md"]
        nav.append({title: [f"{folder}/index.md", *inside]})
    rest = [place for place in OUTSIDE.values() if place in pages and place != "index.md"]
    return [*nav, {"More": [*(place for place in top if place not in nav), *rest]}]


# ---------------------------------------------------------------- diagrams


def mermaid() -> str:
    """The program that draws ```mermaid blocks: fetched once, kept in .venv, the same to the last byte."""
    kept = ROOT / ".venv" / f"mermaid-{MERMAID}.min.js"
    if not kept.exists():
        address = f"https://registry.npmjs.org/mermaid/-/mermaid-{MERMAID}.tgz"
        with urllib.request.urlopen(address, timeout=60) as answer:
            archive = answer.read()
        if base64.b64encode(hashlib.sha512(archive).digest()).decode() != MERMAID_SHA512:
            raise RuntimeError(f"{address} is not the file that we know. Compare it with npm's page of mermaid.")
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            member = files.extractfile("package/dist/mermaid.min.js")
            assert member is not None
            kept.parent.mkdir(exist_ok=True)
            kept.write_bytes(member.read())
    return kept.read_text(encoding="utf-8")
