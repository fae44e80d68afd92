"""PURE: a word as a shell reads it; and whether a shell has nothing to do but to run one command.

Then it ends with that, and the process that asked is above it.

The rule: its last command is followed by nothing but a pipe into filters; before it stand only commands that prepare
(`PREPARE`); and it does not read the output itself, by `$(…)` or the like.
Quotes are not read: what looks like another command counts as one, and the shell then asks for itself.
"""

from __future__ import annotations

SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh"})
# fmt: off
PREPARE = frozenset({
    ":", "true", "cd", "pwd", "export", "unset", "set", "shopt", "umask", "ulimit", "declare", "readonly", "shift",
    "test", "[", "[[", "echo", "printf", "mkdir", "trap", ".", "source",
})
FILTERS = frozenset({"cat", "head", "tail", "tr", "cut", "grep", "sed", "awk", "sort", "uniq", "wc", "tee"})
# fmt: on
BEFORE = frozenset({"exec", "command", "!", "time"})
WITH_VALUE = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-,./:+@%")
SEPARATORS = str.maketrans({";": "\n", "&": "\n", "|": "\n|"})


def quoted(word: str) -> str:
    """As one word of any shell. shlex would load the module of regular expressions."""
    return word if word and PLAIN.issuperset(word) else "'" + word.replace("'", "'\\''") + "'"


def text_or_script(words: list[str]) -> tuple[str | None, str | None]:
    """Of a shell's command line: the text behind `-c`, or the script file."""
    if not words or words[0].rpartition("/")[2].lstrip("-") not in SHELLS:
        return None, None
    rest = iter(words[1:])
    is_text = False
    for word in rest:
        if word in WITH_VALUE:
            next(rest, None)
        elif word[:1] in ("-", "+") and word not in ("-", "--"):
            is_text = is_text or (word[:2] != "--" and "c" in word)
        elif word not in ("-", "--"):
            return (word, None) if is_text else (None, word)
    return None, None


def only_command(text: str) -> str | None:
    """The one command that a shell with this text runs and ends with, as it is written; None if there are more."""
    found = parts(text)
    if any("(" in part or "`" in part for part in found):
        return None
    commands = [(part[:1] == "|", name) for part in found if (name := _command(part.lstrip("|"))) is not None]
    while commands and commands[-1][0] and commands[-1][1] in FILTERS:
        commands.pop()
    alone = all(name in PREPARE for _, name in commands[:-1])
    return commands[-1][1] if commands and alone else None


def parts(text: str) -> list[str]:
    """The commands of a text, without comments; one behind a pipe begins with `|`."""
    lines = text.replace("\\\n", " ").splitlines()
    plain = "\n".join("" if line.lstrip()[:1] == "#" else line.partition(" #")[0] for line in lines)
    return plain.replace(">&", ">").replace("&>", ">").replace("||", ";").translate(SEPARATORS).split("\n")


def _command(part: str) -> str | None:
    """The name of what is run, if anything is."""
    is_file = False  # the word stands behind a redirection
    for word in part.split():
        head, mark, tail = _redirected(word)
        name = "" if is_file or (mark and head.isdecimal()) else head.strip("\"'")
        is_file = bool(mark) and not tail
        if name and name not in BEFORE and not is_assignment(name):
            return name
    return None


def _redirected(word: str) -> tuple[str, bool, str]:
    """What stands before `>` or `<`, whether there is one, and the file."""
    head, mark, tail = word.replace("<", ">").partition(">")
    return head, bool(mark), tail.lstrip(">")


def is_assignment(word: str) -> bool:
    name, mark, _ = word.partition("=")
    return bool(mark) and name.rstrip("+").isidentifier()
