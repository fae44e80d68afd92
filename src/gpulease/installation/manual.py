"""The manual: what every verb says of itself, as the page gpulease(1). tools/cli_reference.py makes Markdown of it."""

from __future__ import annotations

from collections.abc import Iterator

from gpulease import __version__
from gpulease.cli.argument_parser import make_parser, parsers_below
from gpulease.cli.main import VERBS

EXIT_CODES = {
    "0": "done",
    "N": "the command's own code where gpulease runs one (128+n for a signal)",
    "1": "the thing asked for failed or does not exist",
    "2": "wrong usage",
    "69": "no broker or no driver",
    "75": "not granted in time",
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
Every use of a GPU is a lease: a command, a script's variable, a queued job, a reservation.
Each waits in one line, holds its GPUs, and gives them back when its owner is gone.
With no verb, the status is shown.
.SH VERBS
"""
TAIL = """\
.SH FILES
.TP
.I /etc/gpulease/config.toml
settings of the machine's broker
.TP
.I ~/.config/gpulease/config.toml
settings of a user's own broker
.TP
.I /run/gpulease, /var/lib/gpulease
socket and state of the machine's broker
"""


def helps() -> Iterator[tuple[str, list[str]]]:
    """Each verb with its help, and that of the verbs below it."""
    for verb in VERBS:
        parser = make_parser(verb)
        yield verb, [one.format_help().rstrip() for one in (parser, *parsers_below(parser).values())]


def man_page() -> str:
    parts = [HEAD]
    for verb, texts in helps():
        parts.append(f".SS gpulease {verb}\n")
        parts += [f".PP\n.nf\n{_escaped(text)}\n.fi\n" for text in texts]
    codes = [f".TP\n.B {code}\n{_escaped(meaning)}\n" for code, meaning in EXIT_CODES.items()]
    return "".join([*parts, ".SH EXIT STATUS\n", *codes, TAIL])


def _escaped(text: str) -> str:
    """As it stands: no word of it is a request of roff, and a hyphen can be copied into a shell."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("^", "\\(ha")
    lines = [f"\\&{line}" if line[:1] in (".", "'") else line for line in plain.replace("~", "\\(ti").split("\n")]
    return "\n".join(lines)
