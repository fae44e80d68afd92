"""How plain our words are: phrases that we do not use, the length of sentences, and every message of the program.

python tools/words.py                   a table by folder: words, sentences, phrases that we do not use
python tools/words.py --phrases         each such phrase, where it stands, and what to write instead
python tools/words.py --long 25         each sentence of more than 25 words
python tools/words.py --messages        every error, reason, notice, help text and other text of the program
python tools/words.py --docstrings      the first sentence of each docstring

All take paths, and look only there: python tools/words.py --phrases docs/how-to src/gpulease/cli
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
GENERATED = ("docs/reference/cli.md",)  # from the help texts of src/, which are read there
OLDER_TOOLS = "src/gpulease/compat"  # says what the tools say whose names it has; only its docstrings are ours
LONG = 25  # words of a sentence that are many

# What we do not write -> what we write instead. Case does not matter.
PHRASES = {
    r"\bwho(?:m?ever)\b": "a user who …, a process that …",
    r"\bthose (?:that|who|which)\b": "the noun: jobs that …, users who …",
    r"(?:^|[.:;] )(?-i:Who) [^?.\n]*[.;]": "If a user …, Users who …: a clause is not a subject",
    r"\bwhat cannot be\b": "If gpulease cannot …, it …",
    r"\btold\b": "active voice with an actor: the broker tells the client; `explain` says",
    r"\b(?:is|are|was|were|be) had\b": "available, held, got",
    r"\b(?:is|are|was|were|be|been) let go\b|\blets? go of\b": "releases",
    r"\bin vain\b": "without success",
    r"\banew\b": "again",
    r"\b(?:of )?(?:its|their) like\b": "similar jobs",
    r"\bso many\b": "this many, the number",
    r"\bfor want of\b": "because there is no",
    r"\bas (?:was|were|is) asked\b": "No jobs match",
    r"\bis not right\b": "Invalid value for …",
    r"(?<!there )(?<!where )\b(?:is|are) no (?!(?:longer|more|one|better|less|harm|need|use|way)\b)\w+": "is not a …",
    r"(?<!command )\bthe line\b(?! (?:of|that|with|above|below|before|after|number|in)\b)": "the queue",
    r"\bin line\b(?! \d)": "in the queue",
    r"\baskers?\b": "requester",
    r"\b(?:a|the|one|each|every|next|last|first|fresh|new|another|two) looks?\b": "sample, check",
    r"\bbur(?:y|ies|ied)\b": "delete, end",
    r"\bsettl(?:e|es|ed|ing)\b": "resolve, decide, finish",
    r"\bkeeps? house\b": "maintain",
    r"\berrands?\b": "task",
    r"\bpass(?:ing|ed) by\b": "goes first",
    r"\bforese(?:e|es|en|eing)\b": "estimate",
    r"\b(?:blazing|seamless|effortless|elegant|powerful)(?:ly)?\b": "nothing: no praise",
    r";[^.;\n]*;": "three sentences, or a list",
}
FOUND = re.compile("|".join(f"(?P<p{number}>{phrase})" for number, phrase in enumerate(PHRASES)), re.IGNORECASE | re.M)
INSTEAD = list(PHRASES.values())

FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
INLINE = re.compile(r"``[^`]+``|`[^`\n]+`")
TARGET = re.compile(r"\]\([^)]*\)")
BLOCK = re.compile(r"\n\s*\n|\n(?= *(?:[-*]|\d+\.|\|) )|\s\|\s")  # paragraphs, items of lists, cells of tables
SENTENCE = re.compile(r"(?<=[.!?:;])\s+(?=[\"'“(]?[A-Z…])")
WORD = re.compile(r"[^\W\d_][\w'’-]*")
PLAIN = re.compile(r"[A-Za-z]{2,}[,:;.]? [a-z(]")  # at least two words, one after the other
NOT_ENGLISH = re.compile(  # SQL, shell, Python, CSS
    r"^\s*(?:SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|PRAGMA|WITH|WHERE|BEGIN|import |from |local |#!)"
    r"|\"\$|\$[0-9{]| \|\| |>&|\w\{\w| IS NULL|<!doctype"
)
HELP = {"help", "description", "epilog", "usage", "title"}
OF_REASONS = ("planner/reasons", "planner/why")
OF_HELP = ("model/fields", "planner/settings", "cli/main", "cli/suggestions", "simulator/keys")  # tables of help texts


class Text(NamedTuple):
    file: str
    line: int
    kind: str  # page, docstring, error, reason, notice, help, text
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {' '.join(self.text.split())}"


class Hit(NamedTuple):
    text: Text
    phrase: str
    instead: str

    def __str__(self) -> str:
        return f"{self.text.file}:{self.text.line}: “{self.phrase}” -> {self.instead}"


# ---------------------------------------------------------------- pages


def plain(markdown: str) -> str:
    """A page without code, comments and addresses; the lines stay where they are."""
    for pattern in (FENCE, COMMENT):
        markdown = pattern.sub(lambda found: "\n" * found[0].count("\n"), markdown)
    return TARGET.sub("]", INLINE.sub("CODE", markdown))


def page(path: Path) -> Iterator[Text]:
    text, name = plain(path.read_text(encoding="utf-8")), str(path.relative_to(ROOT))
    start = 0
    for found in [*BLOCK.finditer(text), None]:
        end = found.start() if found else len(text)
        part = text[start:end]
        if WORD.search(part):
            begin = start + len(part) - len(part.lstrip())
            yield Text(name, text.count("\n", 0, begin) + 1, "page", part.strip().lstrip("|-*# "))
        start = found.end() if found else end


# ---------------------------------------------------------------- the program


def program(path: Path) -> Iterator[Text]:
    """The docstrings of a module, and the strings in it that look as if people read them."""
    name = str(path.relative_to(ROOT))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and ast.get_docstring(node):
                docstrings.add(id(first.value))
                yield Text(name, first.lineno, "docstring", ast.get_docstring(node) or "")
    if name.startswith(OLDER_TOOLS):
        return
    for line, kind, text in _strings(tree, _kind_of_file(name), docstrings):
        if PLAIN.search(text) and not (kind == "text" and NOT_ENGLISH.search(text)):
            yield Text(name, line, kind, text)


def _kind_of_file(name: str) -> str:
    if any(part in name for part in OF_REASONS):
        return "reason"
    if any(part in name for part in OF_HELP):
        return "help"
    return "notice" if "notice" in name else "text"


def _strings(node: ast.AST, kind: str, seen: set[int]) -> Iterator[tuple[int, str, str]]:
    """All strings below a node with their kinds; an f-string is one, with … for its values."""
    for child in ast.iter_child_nodes(node):
        inner = kind
        if isinstance(child, ast.Call) and _is_error(child):
            inner = "error"
        elif _is_help(child):
            inner = "help"
        elif isinstance(child, ast.ClassDef) and child.name[:1].isupper() and _is_error_class(child):
            inner = "error"
        if isinstance(child, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in child.values]
            yield child.lineno, inner, "".join(parts)
            for value in child.values:
                if isinstance(value, ast.FormattedValue):
                    yield from _strings(value, inner, seen)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            if id(child) not in seen:
                yield child.lineno, inner, child.value
        else:
            yield from _strings(child, inner, seen)


def _is_error(call: ast.Call) -> bool:
    from gpulease import errors

    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    found = getattr(errors, name, None)
    return isinstance(found, type) and issubclass(found, errors.GpuleaseError)


def _is_error_class(node: ast.ClassDef) -> bool:
    from gpulease import errors

    return hasattr(errors, node.name)


def _is_help(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg in HELP
    targets = node.targets if isinstance(node, ast.Assign) else []
    names = [target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "") for target in targets]
    return any(name in ("epilog", "EXAMPLES") for name in names)


# ---------------------------------------------------------------- all of it


def files(places: Iterable[str] = ()) -> Iterator[Path]:
    """Pages and modules below some places; without any, all that people read."""
    wanted = [ROOT / place for place in places] or [*sorted(ROOT.glob("*.md")), ROOT / "docs", ROOT / "src"]
    for place in wanted:
        found = [place] if place.is_file() else sorted([*place.rglob("*.md"), *place.rglob("*.py")])
        yield from (path.resolve() for path in found if str(path.relative_to(ROOT)) not in GENERATED)


def texts(places: Iterable[str] = ()) -> Iterator[Text]:
    for path in files(places):
        yield from page(path) if path.suffix == ".md" else program(path)


def hits(text: Text) -> Iterator[Hit]:
    clean = INLINE.sub("CODE", text.text)
    for found in FOUND.finditer(clean):
        assert found.lastgroup is not None
        line = text.line + clean.count("\n", 0, found.start())
        yield Hit(text._replace(line=line), " ".join(found[0].split()), INSTEAD[int(found.lastgroup[1:])])


def sentences(text: Text) -> list[str]:
    whole = " ".join(INLINE.sub("CODE", text.text).split())
    return [part for part in SENTENCE.split(whole) if WORD.search(part)]


def folder(file: str) -> str:
    """What is counted together: a folder of docs/, a package of src/, the pages at the top."""
    parts = file.split("/")[:-1]
    return "/".join(parts[:3] if parts[:1] == ["src"] else parts[:2]) or "."


# ---------------------------------------------------------------- the command


def table(places: list[str]) -> None:
    words: Counter[str] = Counter()
    count: Counter[str] = Counter()
    long: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for text in texts(places):
        name = folder(text.file)
        found[name] += len(list(hits(text)))
        for sentence in sentences(text):
            length = len(WORD.findall(sentence))
            words[name] += length
            count[name] += 1
            long[name] += length > LONG
    print(f"{'FOLDER':<28} {'WORDS':>7} {'SENTENCES':>9} {'WORDS EACH':>10} {f'OVER {LONG}':>8} {'PHRASES':>8}")
    for name in sorted(words):
        mean = words[name] / count[name]
        print(f"{name:<28} {words[name]:>7} {count[name]:>9} {mean:>10.1f} {long[name]:>8} {found[name]:>8}")


def main(typed: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--phrases", action="store_true", help="each phrase that we do not use")
    what.add_argument("--long", type=int, metavar="N", help="each sentence of more than N words")
    what.add_argument("--messages", action="store_true", help="every message of the program")
    what.add_argument("--docstrings", action="store_true", help="the first sentence of each docstring")
    parser.add_argument("places", nargs="*", metavar="PATH", help="look only there")
    chosen = parser.parse_args(typed)
    places = [str(Path(place).resolve().relative_to(ROOT)) for place in chosen.places]
    if chosen.phrases:
        for hit in (hit for text in texts(places) for hit in hits(text)):
            print(hit)
    elif chosen.long is not None:
        for text in texts(places):
            for sentence in sentences(text):
                if (length := len(WORD.findall(sentence))) > chosen.long:
                    print(f"{text.file}:{text.line}: {length} words: {sentence}")
    elif chosen.messages:
        for text in sorted(texts(places), key=lambda text: text.kind):
            if text.kind not in ("page", "docstring"):
                print(text)
    elif chosen.docstrings:
        for text in texts(places):
            if text.kind == "docstring":
                print(text._replace(text=sentences(text)[0] if sentences(text) else ""))
    else:
        table(places)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:  # `| head`
        sys.stderr.close()
