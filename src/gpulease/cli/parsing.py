"""Options of the verbs. A verb's `configure` says them once, to `quick_parse` here or to argparse."""

from __future__ import annotations

import sys

from gpulease.errors import UsageError
from gpulease.render.terminal import clean as clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser as ArgumentParser
    from argparse import Namespace as Namespace
    from typing import IO
    from typing import Any as Any
else:
    Any = ArgumentParser = Namespace = object  # for the signatures of the verbs

REMAINDER = "..."  # as argparse has it, which is not loaded for a word


class Irregular(Exception):
    """Words, or an option, that only argparse understands; or words that are wrong."""


class Options:
    """Takes what `configure` says about a verb."""

    def __init__(self) -> None:
        self.epilog = ""
        self.flags: dict[str, dict[str, Any]] = {}
        self.positional: list[dict[str, Any]] = []
        self.defaults: dict[str, Any] = {}
        self.required: set[str] = set()

    def add_argument(self, *names: str, **about: Any) -> None:
        long = next((name for name in names if name.startswith("--")), names[0])
        about = {**about, "dest": about.get("dest") or long.lstrip("-").replace("-", "_")}
        self.defaults[about["dest"]] = about.get("default", False if about.get("action") == "store_true" else None)
        if not names[0].startswith("-"):
            self.positional.append(about)
        for name in names if names[0].startswith("-") else ():
            self.flags[name] = about
        if about.get("required"):
            self.required.add(about["dest"])

    def add_argument_group(self, title: str) -> Options:
        return self

    def set_defaults(self, **values: Any) -> None:
        self.defaults |= values

    def __getattr__(self, name: str) -> Any:
        raise Irregular(name)  # groups that exclude each other, verbs of a verb


def quick_parse(options: Options, words: list[str]) -> dict[str, Any]:
    """What argparse would make of `words`; Irregular where that is not plain."""
    found: dict[str, Any] = {}
    loose: list[str] = []
    rest = words[::-1]
    ended = False  # whether an option followed the loose words: argparse takes no more of them then
    while rest:
        word = rest.pop()
        if not word.startswith("-"):
            if ended:
                raise Irregular(word)
            loose.append(word)
            if options.positional and options.positional[-1].get("nargs") == REMAINDER:
                loose += reversed(rest)
                break
            continue
        ended = bool(loose)
        _take_option(options, word, rest, found)
    if not options.required <= set(found):
        raise Irregular
    _share_out(options.positional, loose, found)
    return {**options.defaults, **found}


def _take_option(options: Options, word: str, rest: list[str], found: dict[str, Any]) -> None:
    name, equals, value = word.partition("=")
    about = options.flags.get(name)
    if about is None or about.get("nargs", "?") != "?" or (equals and not name.startswith("--")):
        raise Irregular(word)
    if "nargs" in about and not equals and (not rest or rest[-1].startswith("-")):
        found[about["dest"]] = about["const"]
        return
    action, dest = about.get("action", "store"), about["dest"]
    if action == "store_true" and not equals:
        found[dest] = True
        return
    if not equals and (not rest or rest[-1].startswith("-")):
        raise Irregular(word)
    value = _read(about, value if equals else rest.pop())
    if action == "append":
        found[dest] = [*found.get(dest, about["default"]), value]
    elif action == "store" or (action == "once" and dest not in found):
        found[dest] = value
    else:
        raise Irregular(word)


def _read(about: dict[str, Any], word: str) -> Any:
    try:
        value = about["type"](word) if "type" in about else word
    except Exception:  # argparse says what is wrong
        raise Irregular(word) from None
    if "choices" in about and value not in about["choices"]:
        raise Irregular(word)
    return value


def _share_out(positional: list[dict[str, Any]], loose: list[str], found: dict[str, Any]) -> None:
    for about in positional:
        many = about.get("nargs") in ("*", "+", REMAINDER)
        taken, loose = (loose, []) if many else (loose[:1], loose[1:])
        if not taken and about.get("nargs") not in ("*", "?", REMAINDER):
            raise Irregular
        values = [_read(about, word) for word in taken]
        if many:
            found[about["dest"]] = values
        elif values:
            found[about["dest"]] = values[0]
    if loose:
        raise Irregular


def parse(verb: str, words: list[str]) -> Namespace:
    """Parsed options; what stands behind `--` is `arguments.command`, untouched."""
    before, separator, after = _split(words)
    arguments = _parsed(verb, before)
    leading = getattr(arguments, "command", None)
    if getattr(arguments, "command_behind", False):
        leading = []  # positional words are something else; only what stands behind `--` is the command
    if leading is None and separator:
        raise UsageError(f"`gpulease {verb}` takes no command.", f"See `gpulease {verb} --help`.")
    if leading is not None and separator and not after and not leading:
        raise UsageError("No command stands behind `--`.", f"See `gpulease {verb} --help`.")
    if leading:
        after = [*leading, *(["--", *after] if separator else [])]
    arguments.command = after
    return arguments


def _parsed(verb: str, words: list[str]) -> Namespace:
    from gpulease.cli.main import load

    options = Options()
    try:
        load(verb).configure(options)
        namespace = type(sys.implementation)  # SimpleNamespace, of which `types` need not be loaded
        return namespace(**quick_parse(options, words))  # type: ignore[return-value]
    except Irregular:
        from gpulease.cli.argument_parser import parse_words

        return parse_words(verb, words)


def _split(words: list[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in words:
        return words, False, []
    place = words.index("--")
    return words[:place], True, words[place + 1 :]


def add_command(parser: ArgumentParser) -> None:
    parser.add_argument("command", nargs=REMAINDER, metavar="-- CMD …", help="the command to run")


def add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def say(text: str, stream: IO[str] | None = None) -> None:
    """A line that has words of the broker's or of other users in it."""
    print(clean(text), file=stream)


def print_json(document: object, indent: int | None = None) -> int:
    import json

    print(json.dumps(document, indent=indent))
    return 0


def add_watch(parser: ArgumentParser) -> None:
    again = "keep showing it: redraw at each change, and every TIME (default 2s)"
    parser.add_argument("--watch", "-w", nargs="?", const="2s", metavar="TIME", help=again)


# Verbs that are of this machine's installation, or of several hosts by themselves.
HERE = ("rebalance", "help", "install", "uninstall", "shims", "completion", "simulate", "demo", "broker")


def add_where(parser: Any, verb: str, absent: Any = None) -> None:
    """What `remote` takes out of the words before a verb sees them: declared for help and completion only.

    `absent` is the default: argparse has a word for none at all.
    """
    known = getattr(parser, "flags", None) or getattr(parser, "_option_string_actions", {})
    if verb in HERE or "--host" in known:
        return
    group = parser.add_argument_group("where")
    several = "; `any`: the configured host where it starts soonest" if verb in ("add", "run", "shell") else ""
    group.add_argument("--host", metavar="HOST", default=absent, help=f"do it on this host, by ssh{several}")
    engine = "use this engine: `local`, or one of `gpulease help engines`"
    group.add_argument("--engine", metavar="NAME", default=absent, help=engine)


OF_HOSTS = "of all configured hosts, or of these: a,b (see `gpulease help several-hosts`)"


def add_hosts(parser: ArgumentParser, help: str = OF_HOSTS) -> None:
    parser.add_argument("--hosts", nargs="?", const="", metavar="HOSTS", help=help)


def add_last(parser: ArgumentParser, help: str) -> None:
    """The one job, or lease, that a verb is about."""
    parser.add_argument("id", metavar="ID", help=f"{help}; `last` is the newest job")


def at_least(least: int, option: str, number: int | None) -> int | None:
    if number is not None and number < least:
        raise UsageError(f"{option} is {number}.", f"Give {least} or more.")
    return number
