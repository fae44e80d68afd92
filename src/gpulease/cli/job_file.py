"""`gpulease add --file`: a command a line, with comments and continued lines, as words or for a shell.

What only a shell understands is not refused in a line of words, for it may be meant so, but it is told.
"""

from __future__ import annotations

import sys
from re import VERBOSE, compile

from gpulease.api.job_commands import by_shell
from gpulease.errors import UsageError, in_words
from gpulease.model.fields import wrong_with
from gpulease.model.job_selection import ranges
from gpulease.model.shell_text import SHELLS

# Letters that mean nothing to a shell: a line of them is split twenty times as fast.
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \t-_=+./,:@%^!?()[]{}")
SHORT = 30_000  # characters of a line whose words cannot be too long
PIECES = compile(
    r"""
      \\. | '[^']*'
    | (?P<quoted> "(?:\\.|[^"\\])*" )
    | (?:^|\s) (?P<comment> \#.* )
    | (?P<sign> && | \|\|? | >>? | <<? | ; | & | ` | \$(?=[\w({@*?!$\#-]) | \* | (?:(?<=\s)|^)~(?=/|\s|$) )
    """,
    VERBOSE,
)
EXPANDED = compile(r"(?<!\\)(?:\\\\)*(?P<sign>`|\$(?=[\w({@*?!$#-]))")  # also between double quotes


def read_commands(path: str, shell: bool) -> tuple[list[list[str]], list[int]]:
    """The commands, and the number of the line of each. What they ask of a shell that is not there is told."""
    commands: list[list[str]] = []
    numbers: list[int] = []
    signs: dict[int, list[str]] = {}
    for number, line in _lines(_text(path)):
        words, wrong = (by_shell(line), None) if shell else _words(line, number, signs)
        wrong = wrong or (wrong_with(words) if words else None)
        if wrong is not None:
            shown = f"Line {number} of {path!r} is not a command: it {wrong}: {line[:60]!r}."
            raise UsageError(shown, "Nothing was queued. Correct that line.")
        if words:
            commands.append(words)
            numbers.append(number)
    if not commands:
        raise UsageError(f"The file {path!r} has no command in it.", "Write one command a line.")
    _tell(path, signs)
    return commands, numbers


def _text(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else open(path).read()  # read whole, and gone
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The file {path!r} cannot be read: {in_words(error)}.", "Check its name.") from None


def _lines(text: str) -> list[tuple[int, str]]:
    """With the number at which each begins; without those that are empty or a comment. A last `\\` continues one."""
    found: list[tuple[int, str]] = []
    begun: list[str] = []
    first = 0
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = line.removesuffix("\r")
        if not begun:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            first = number
        continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1 and _comment(line) is None
        begun.append(line[:-1] if continued else line)
        if not continued:
            found.append((first, "".join(begun)))
            begun = []
    return [*found, (first, "".join(begun))] if begun else found


def _comment(line: str) -> int | None:
    """Where it begins, outside quotes."""
    return next((piece.start("comment") for piece in PIECES.finditer(line) if piece["comment"]), None)


def _words(line: str, number: int, signs: dict[int, list[str]]) -> tuple[list[str], str | None]:
    """The words of a line, and what is wrong with them; what only a shell understands goes into `signs`."""
    if len(line) < SHORT and PLAIN.issuperset(line):
        return line.split(), None
    import shlex

    try:
        words = shlex.split(line[: _comment(line)])
    except ValueError as error:
        return [], f"cannot be split into words ({error})"
    seen = _signs(line, words)
    if seen:
        signs[number] = seen
    return words, None


def _signs(line: str, words: list[str]) -> list[str]:
    """What a shell would not give to the command as it is. What stands between quotes, a shell that is run reads."""
    runs_shell = bool(words) and words[0].rpartition("/")[2] in SHELLS
    found: list[str] = []
    for piece in PIECES.finditer(line):
        if piece["comment"]:
            break
        inside = None if runs_shell or not piece["quoted"] else EXPANDED.search(piece["quoted"])
        found += [sign for sign in (piece["sign"], inside and inside["sign"]) if sign]
    return found


def _tell(path: str, signs: dict[int, list[str]]) -> None:
    if not signs:
        return
    kinds = " ".join(dict.fromkeys(sign for found in signs.values() for sign in found))
    one = len(signs) == 1
    where = f"line{'' if one else 's'} {ranges(signs)[:200]} of {path} {'has' if one else 'have'}"
    print(
        f"gpulease: {where} {kinds} in {'it' if one else 'them'}, and no shell reads that: the command gets it.\n"
        "gpulease: With --shell a shell runs each line. Quotes around it say that it is meant so.",
        file=sys.stderr,
    )
