"""`gpulease notify`: where notices go, of what, and whether that works."""

from __future__ import annotations

import sys
import time

from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, print_json, say
from gpulease.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXAMPLES = """\
The events are turn, ended, failed, out-of-memory, lease-ending, gpu-broken and
gpu-used. Without --on you get all except `ended`, which is for single jobs with
`gpulease add --notify`. The address is kept in a file that only you can read.
`set -` reads it from standard input, so it is not in `ps` or your history.

examples:
  gpulease notify                                the address, and if it works
  gpulease notify set mailto:ada@example.org     with sendmail of this machine
  gpulease notify set tty --on all               on your terminals here
  gpulease notify set - < address                https://hooks.example.com/...
  gpulease notify set --on failed,gpu-broken     other events, same address
  gpulease notify test                           send one now
  gpulease notify clear
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("action", nargs="?", choices=("set", "test", "clear"), help="default: show the settings")
    parser.add_argument("address", nargs="?", metavar="ADDRESS", help="mailto:…, https://…, tty, `-`, or Apprise URL")
    parser.add_argument("--on", metavar="EVENTS", help="the events, as failed,turn; or `all` or `none`")
    add_json(parser)


def run(arguments: Namespace) -> int:
    if arguments.action != "set" and (arguments.address is not None or arguments.on is not None):
        raise UsageError("An address and --on are for `gpulease notify set`.", "See `gpulease notify --help`.")
    from gpulease.api import notices

    if arguments.action == "set":
        return _set(arguments)
    if arguments.action == "test":
        reply = notices.test()
        return print_json({"sent_to": reply}) if arguments.json else _say(f"sent to {reply}")
    if arguments.action == "clear":
        there = notices.clear()
        return print_json({"cleared": there}) if arguments.json else _say("cleared" if there else "none was set")
    return _show(notices.show(), arguments.json)


def _set(arguments: Namespace) -> int:
    from gpulease.api import notices

    if arguments.address is None and arguments.on is None:
        raise UsageError("No address was given.", "Give mailto:you@example.org, https://…, tty, or `-`.")
    address = _read_address() if arguments.address == "-" else arguments.address
    reply = notices.choose(address, arguments.on)
    if reply["warning"]:
        say(f"gpulease: no notice will arrive: {reply['warning']}.", sys.stderr)
    return _show(reply, arguments.json)


def _read_address() -> str:
    """From the standard input; what is typed at a terminal is not shown."""
    if not sys.stdin.isatty():
        return sys.stdin.readline(1 << 16).strip()
    from getpass import getpass

    try:
        return getpass("address: ").strip()
    except EOFError:
        return ""


def _say(text: str) -> int:
    say(text)
    return 0


def _show(reply: dict[str, Any], as_json: bool) -> int:
    if as_json:
        return print_json(reply, 2)
    if reply["address"] is None:
        return _say("No notices are sent: no address is set. `gpulease notify set ADDRESS` sets one.")
    events = reply["events"]
    say(f"address  {reply['address']}")
    say(f"events   {', '.join(events) or 'what a job asks for with --notify'}" if events is not None else NO_BROKER)
    last = reply["last"]
    if last is None:
        return _say("last     none was sent yet; `gpulease notify test` sends one")
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last["time"]))
    if last.get("test"):
        return _say(f"last     {at} a test was sent; no notice yet")
    many = f" ({last['count']} notices)" if last["count"] > 1 else ""
    how = "sent" if last["trouble"] is None else f"failed: {last['trouble']}"
    return _say(f"last     {at} {how}{many}")


NO_BROKER = "events   none from this broker; `gpulease notify set --on EVENTS` chooses them"
