"""PURE: an error's text for Python: what speaks of options on the command line speaks of arguments here.

`Write it as --mem 6G.` becomes `Write it as mem='6G'.`; whole commands, in backticks, stay as they are.
"""

from __future__ import annotations

from re import Match, compile

# Quoted text and commands first, to be passed over; then an option, with a value if it has a digit in it.
PIECES = compile(
    r"(?<!\w)(?:'[^']*'|`[^`]*`)|(?<!\S)(?P<before>\(?)--(?P<name>[a-z][a-z-]*)(?: (?P<value>(?=\w*\d)\w+(?:,\w+)*))?"
)
OTHERWISE = {"`any`, as --util any": "None, as util=None"}
FLAGS = {
    "--all": "all=True",
    "--all-users": "user='*'",
    "--force": "force=True",
    "--hold": "hold=True",
    "--if-held": "if_held=True",
    "--mine": "mine=True",
    "--no-wait": "wait=0",
    "--shell": "shell=True",
    "--visible": "only_visible=True",
}
NAMES = {"for": "duration"}


def in_python(text: str) -> str:
    for words, others in OTHERWISE.items():
        text = text.replace(words, others)
    return PIECES.sub(_argument, text)


def _argument(found: Match[str]) -> str:
    option = found["name"]
    if option is None:
        return found.group()
    value = found["value"]
    flag = FLAGS.get(f"--{option}")
    if flag is not None:
        return f"{found['before']}{flag}" + (f" {value}" if value else "")
    return f"{found['before']}{NAMES.get(option, option.replace('-', '_'))}={_value(value)}"


def _value(text: str | None) -> str:
    """As it is written in Python; nothing where none was told."""
    if text is None or text.isdecimal():
        return text or ""
    numbers = text.split(",")
    return f"[{', '.join(numbers)}]" if all(map(str.isdecimal, numbers)) else repr(text)
