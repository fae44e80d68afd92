"""PURE: HTML from elements. Whatever is no Markup is escaped, so no text of a user's can become an element."""

from __future__ import annotations

from html import escape

VOID = frozenset({"meta", "link", "input", "br"})


class Markup(str):
    """Text that is HTML already; only `tag` and `join` make it."""


Content = str | int | None


def tag(name: str, /, *content: Content, **attributes: str | int | bool | None) -> Markup:
    """`tag("a", "text", href="…")`. `_` in a name stands for `-`, and one at its end is left out, as in `class_`."""
    opened = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    return Markup(opened if name in VOID else f"{opened}{join(*content)}</{name}>")


def join(*content: Content) -> Markup:
    return Markup("".join(_shown(one) for one in content))


def _attribute(name: str, value: str | int | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{_shown(str(value))}"'


def _shown(one: Content) -> str:
    if one is None:
        return ""
    return one if isinstance(one, Markup) else escape(printable(str(one)))


def printable(text: str) -> str:
    """Without control characters, nor those that turn the direction of a line: a name must look like what it is."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else " " for letter in text)
