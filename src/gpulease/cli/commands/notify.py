"""`gpulease notify`: where notices go, of what, and whether that works."""

from __future__ import annotations

import os
import sys
import time

from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, print_json, say
from gpulease.client.connection import ask
from gpulease.errors import BrokerUnavailable, NotDelivered, NotFound, UsageError
from gpulease.model.notices import NONE, read_events
from gpulease.notices import address as own_file
from gpulease.notices.address import NoticeAddress, read_address
from gpulease.notices.channels import NO_SENDMAIL, Undelivered, apprise_of, deliver, sendmail
from gpulease.notices.words import trial

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

    if arguments.action == "set":
        return _set(arguments)
    if arguments.action == "test":
        reply = test()
        return print_json({"sent_to": reply}) if arguments.json else _say(f"sent to {reply}")
    if arguments.action == "clear":
        there = clear()
        return print_json({"cleared": there}) if arguments.json else _say("cleared" if there else "none was set")
    return _show(show(), arguments.json)


def _set(arguments: Namespace) -> int:

    if arguments.address is None and arguments.on is None:
        raise UsageError("No address was given.", "Give mailto:you@example.org, https://…, tty, or `-`.")
    address = _read_address() if arguments.address == "-" else arguments.address
    reply = choose(address, arguments.on)
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


def show() -> dict[str, Any]:
    """The address without its secret, of which events the broker tells, and how the last message fared."""
    path = own_file.path_of(os.environ)
    last = own_file.last(path) or {}
    return {"address": _shown(path), **_chosen(), "file": path, "last": last or None}


def _shown(path: str) -> str | None:
    try:
        return own_file.read(path).shown
    except NotFound:
        return None


def _chosen() -> dict[str, Any]:
    """A broker that does not run tells of nothing, and is not started to be asked."""
    try:
        return {"events": ask("notify", start=False)["events"]}
    except BrokerUnavailable:
        return {"events": None}


def choose(address: str | None, on: str | None) -> dict[str, Any]:
    """Another address, other events, or both."""
    path = own_file.path_of(os.environ)
    events = None if on is None else list(read_events(on, "--on")) or [NONE]
    found = own_file.read(path) if address is None else _checked(address)
    ask("notify", file=path, events=events)  # first: where it refuses, nothing is written
    if address is not None:
        own_file.write(path, found)
    return {**show(), "warning": cannot_send()}


def _checked(text: str) -> NoticeAddress:
    found = read_address(text)
    if found.kind == "apprise":
        try:
            apprise_of(found)
        except Undelivered as trouble:
            scheme = found.text.partition(":")[0]
            step = "Give mailto:…, https://… or tty, or another address of Apprise's."
            raise UsageError(f"A {scheme}:// address cannot be used: {trouble.why}.", step) from None
    return found


def cannot_send() -> str | None:
    """Why nothing that is sent to the address can leave this machine, as far as that is seen without sending."""
    mail = own_file.read(own_file.path_of(os.environ)).kind == "mail"
    return NO_SENDMAIL if mail and sendmail() is None else None


def clear() -> bool:
    """Whether there was an address."""
    there = own_file.remove(own_file.path_of(os.environ))
    try:
        ask("notify", start=False, clear=True)
    except BrokerUnavailable:
        pass  # it finds no address when it looks for one
    return there


def test() -> str:
    """Send one now, from this process; where it went. Raises NotDelivered, which tells why not."""
    path = own_file.path_of(os.environ)
    address = own_file.read(path)
    try:
        deliver(address, trial(os.uname().nodename))
    except Undelivered as trouble:
        raise NotDelivered(f"The notice was not delivered to {address.shown}: {trouble.why}.") from None
    own_file.write_test(path)
    return address.shown
