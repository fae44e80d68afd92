"""The manual: what every verb says of itself, as the page gpulease(1). tools/cli_reference.py makes Markdown of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gpulease import __version__
from gpulease.cli import pages
from gpulease.cli.argument_parser import make_parser, parsers_below
from gpulease.cli.main import VERBS

EXIT_CODES = {
    "0": "done",
    "N": "the exit code of the command that gpulease ran (128+n for signal n)",
    "1": "it failed, or what you named does not exist",
    "2": "wrong usage",
    "69": "no broker or no driver",
    "75": "not granted in time, or not free now",
    "77": "not permitted",
}
HEAD = f"""\
.TH GPULEASE 1 "" "gpulease {__version__}"
.SH NAME
gpulease \\- share the GPUs of a server among people and programs
.SH SYNOPSIS
.B gpulease
.RI [ VERB "] [" OPTIONS ]
.SH DESCRIPTION
Every use of a GPU is a lease: a command, a script's variable, a queued job,
a reservation.
Each waits in one queue, holds its GPUs, and releases them when its owner ends.
Without a verb, gpulease shows the status.
.PP
.B gpulease help
lists pages to read: a tutorial, how-to pages, concepts and references.
.SH VERBS
"""
FILES = {
    "/etc/gpulease/config.toml": "settings of the machine's broker",
    "~/.config/gpulease/config.toml": "settings of a user's own broker",
    "/run/gpulease": "socket of the machine's broker",
    "/var/lib/gpulease": "state of the machine's broker",
    "$XDG_RUNTIME_DIR/gpulease": "socket of a user's own broker",
    "~/.local/state/gpulease/HOST": "state, and logs of jobs, of a user's own broker",
    "$GPULEASE_DIR": "all of these in one folder, where it is set",
}


def helps() -> Iterator[tuple[str, list[str]]]:
    """Each verb with its help, and that of the verbs below it."""
    for verb in VERBS:
        parser = make_parser(verb)
        yield verb, [one.format_help().rstrip() for one in (parser, *parsers_below(parser).values())]


def man_page() -> str:
    parts = [HEAD]
    for verb, texts in helps():
        parts.append(f".SS gpulease {_escaped(verb)}\n")
        parts.append(".PP\n".join(f".nf\n{_escaped(text)}\n.fi\n" for text in texts))
    parts += [_section("EXIT STATUS", EXIT_CODES), _section("ENVIRONMENT", _variables()), _section("FILES", FILES)]
    return "".join([*parts, ".SH SEE ALSO\n.BR nvidia\\-smi (1)\n"])


def _section(name: str, meanings: Mapping[str, str]) -> str:
    rows = (f".TP\n.B {_escaped(word)}\n{_escaped(meaning)}\n" for word, meaning in meanings.items())
    return f".SH {name}\n{''.join(rows)}"


def _variables() -> dict[str, str]:
    """As the page about settings has them."""
    rows = re.findall(r"^\| (`[A-Z_`, ]+) \| (.*?) \| (.*?) ?\|$", pages.read("reference/settings"), re.MULTILINE)
    return {
        _plain(name): _plain(text) + (f" (default: {_plain(usual)})" if usual else "") for name, text, usual in rows
    }


def _plain(text: str) -> str:
    """Without Markdown's marks."""
    return re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", text).replace("`", "")


def _escaped(text: str) -> str:
    """As it stands: no word of it is a request of roff, and a hyphen can be copied into a shell."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("^", "\\(ha")
    lines = [f"\\&{line}" if line[:1] in (".", "'") else line for line in plain.replace("~", "\\(ti").split("\n")]
    return "\n".join(lines)
