"""The options of a verb in full, by argparse: its help, and what is wrong about words that are not right.

It takes as long to load as the rest of a command, so `parsing` does without it for words that are right.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from gpulease.cli.parsing import add_where
from gpulease.cli.suggestions import option_meant, state_meant, words_meant


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


class VerbParser(argparse.ArgumentParser):
    """Says in one line what is wrong, and where help is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Help, "allow_abbrev": False, **options})
        self.register("action", "once", Once)

    def error(self, message: str, hint: str = "") -> NoReturn:
        text = "".join(letter if letter.isprintable() else "?" for letter in message[:500])
        print(f"{self.prog}: {text[:1].upper()}{text[1:]}.", file=sys.stderr)
        print(f"{hint or state_meant(message)}See `{self.prog} --help`.", file=sys.stderr)
        sys.exit(2)

    def refuse(self, unknown: list[str]) -> NoReturn:
        option = next((word for word in unknown if word.startswith("-")), None)
        hint = words_meant(self.prog.partition(" ")[2], option or unknown[0], self._option_string_actions)
        if option is None:
            self.error(f"unrecognized arguments: {' '.join(unknown)}", hint)
        meant = option_meant(option, self._option_string_actions)
        self.error(
            f"there is no option {option.partition('=')[0]}", hint or (f"Did you mean {meant}? " if meant else "")
        )


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


def parse_words(verb: str, words: list[str]) -> argparse.Namespace:
    parser = make_parser(verb)
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        below = next((inner for name, inner in parsers_below(parser).items() if name in words), parser)
        below.refuse(unknown)
    return arguments


def parsers_below(parser: VerbParser) -> dict[str, VerbParser]:
    """Of a verb with verbs of its own."""
    groups = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: inner for group in groups for name, inner in group.items()}


def make_parser(verb: str) -> VerbParser:
    from gpulease.cli.main import ALIASES, VERBS, load

    also = "".join(f" `gpulease {alias}` is the same." for alias, meant in ALIASES.items() if meant == verb)
    parser = VerbParser(
        prog=f"gpulease {verb}",
        description=f"{VERBS[verb][1][:1].upper()}{VERBS[verb][1][1:]}.{also}",
    )
    load(verb).configure(parser)
    add_where(parser, verb, argparse.SUPPRESS)
    if parser.get_default("command_behind"):
        options = parser.format_usage().removeprefix("usage: ").rstrip()
        parser.usage = f"{options}\n{' ' * len(f'usage: {parser.prog} ')}[-- CMD …]"
    return parser
