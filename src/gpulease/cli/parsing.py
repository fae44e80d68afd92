"""Options of the verbs: one parser each, made only for the verb that is asked for."""

from __future__ import annotations

import argparse
import sys

from gpulease.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


class Help(argparse.RawDescriptionHelpFormatter):
    """With a width: to ask the terminal for it argparse loads half the standard library, help wanted or not."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=78)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """`-n, --gpus N`, as Python 3.13 writes it, with any Python."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, and where help is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Help, "allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        text = "".join(letter if letter.isprintable() else "?" for letter in message[:500])
        print(f"{self.prog}: {text[:1].upper()}{text[1:]}.", file=sys.stderr)
        print(f"See `{self.prog} --help`.", file=sys.stderr)
        sys.exit(2)


class Once(argparse.Action):
    """An option of which a second one would silently replace the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest, None) is not None:
            parser.error(f"{option_string} was given twice, and takes one value")
        setattr(namespace, self.dest, values)


def add_last(parser: argparse.ArgumentParser, help: str) -> None:
    """The one job, or lease, that a verb is about."""
    parser.add_argument("id", metavar="ID", help=f"{help}; `last` is the newest job")


def at_least(least: int, option: str, number: int | None) -> int | None:
    if number is not None and number < least:
        raise UsageError(f"{option} is {number}.", f"Give {least} or more.")
    return number


def make_parser(verb: str) -> Parser:
    from gpulease.cli.main import VERBS, load

    parser = Parser(
        prog=f"gpulease {verb}",
        description=f"{VERBS[verb][1][:1].upper()}{VERBS[verb][1][1:]}.",
    )
    load(verb).configure(parser)
    return parser


def parse(verb: str, words: list[str]) -> argparse.Namespace:
    """Parsed options; what stands behind `--` is `arguments.command`, untouched."""
    before, separator, after = _split(words)
    arguments = make_parser(verb).parse_args(before)
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


def _split(words: list[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in words:
        return words, False, []
    place = words.index("--")
    return words[:place], True, words[place + 1 :]


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD …", help="the command to run")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")
