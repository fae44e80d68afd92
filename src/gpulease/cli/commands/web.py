"""`gpulease web`: a page in the browser that shows who holds, who waits and why, as it changes."""

from __future__ import annotations

import os

from gpulease.cli.parsing import ArgumentParser, Namespace, add_hosts, add_json, print_json
from gpulease.errors import NotPermitted, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpulease.web.access import Access
    from gpulease.web.picture import PagePicture

EXAMPLES = """\
It prints an address with a token. Anybody who has the token sees what you see.
It listens on this machine only; from another: ssh -L 8420:localhost:8420 HOST.

examples:
  gpulease web
  gpulease web --actions          with buttons to kill, pause and move your jobs
  gpulease web --hosts gpu1,gpu2  with a table of these hosts
  curl "$ADDRESS"                 the page as text; with ?json as JSON
  gpulease web --public --bind 0.0.0.0 --allow-host gpu1.example.org
  gpulease web --user-header X-Remote-User --token-file ~/.gpulease-token
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("--port", type=int, metavar="N", help="the port (default: the first free one from 8420)")
    parser.add_argument("--bind", default="127.0.0.1", metavar="ADDRESS", help="where to listen (default 127.0.0.1)")
    parser.add_argument(
        "--actions", action="store_true", help="show buttons: kill, pause, resume and move your own jobs"
    )
    parser.add_argument(
        "--public",
        action="store_true",
        help="without a token: show what any user may see (root and the broker's user only)",
    )
    parser.add_argument("--token-file", metavar="PATH", help="keep the token in this file, so that it stays the same")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="another host name in the page's address"
    )
    parser.add_argument(
        "--user-header", metavar="NAME", help="behind a proxy: this header names the user (the proxy sends the token)"
    )
    parser.add_argument(
        "--proxy", action="append", default=[], metavar="NETWORK", help="address of that proxy (default: this machine)"
    )
    parser.add_argument(
        "--dcgm-mapping", metavar="DIR", help="write the lease of each GPU into DIR, for dcgm-exporter (hpc_job)"
    )
    add_hosts(parser, "show a table of these hosts: a,b (default: the configured ones)")
    add_json(parser)


def run(arguments: Namespace) -> int:
    _check(arguments)
    try:
        from gpulease.web.startup import listen, serve
    except ModuleNotFoundError as missing:
        if missing.name != "aiohttp":
            raise
        raise UsageError("aiohttp is not installed.", "Install it: pip install 'gpulease[web]'.") from None
    access = _access(arguments)
    with listen(arguments.bind, arguments.port) as listening:
        port = listening.getsockname()[1]
        begun, watch = lambda: _begun(arguments, access, port), _mapping(arguments.dcgm_mapping)
        serve(listening, access, begun, watch, _hosts(arguments.hosts))
    return 0


def _hosts(asked: str | None) -> list[str]:
    """Those that are to be shown; where none are known, nobody misses them unless they were asked for."""
    from gpulease.hosts import hosts

    return hosts.names(asked) if asked is not None or hosts.known() else []


def _mapping(folder: str | None) -> Callable[[PagePicture], None] | None:
    if folder is None:
        return None
    from gpulease.cli.commands.metrics import write_mapping

    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"--dcgm-mapping is {folder!r}, in which nothing can be written.", "Make the folder.")
    return lambda picture: write_mapping(folder, picture.document())


def _check(arguments: Namespace) -> None:
    if arguments.public and (arguments.actions or arguments.user_header):
        other = "--actions" if arguments.actions else "--user-header"
        raise UsageError(f"--public shows everybody the same, so it goes without {other}.", "Leave one of the two out.")
    if arguments.port is not None and not 0 <= arguments.port <= 65535:
        raise UsageError(f"--port is {arguments.port}.", "Give a number up to 65535.")
    if arguments.proxy and not arguments.user_header:
        raise UsageError("--proxy was given without --user-header.", "Say which header of the proxy names the user.")
    _check_networks(arguments.proxy)
    if arguments.public or arguments.user_header:
        _only_managers("--public" if arguments.public else "--user-header")


def _check_networks(networks: list[str]) -> None:
    from ipaddress import ip_network

    for network in networks:
        try:
            ip_network(network, strict=False)
        except ValueError:
            raise UsageError(f"--proxy is {network!r}.", "Give an address or a network, as 10.0.0.0/8.") from None


def _only_managers(option: str) -> None:
    """Who shows things to others must be one whom the broker lets manage it, and who need not fear its answers."""
    from gpulease.client.connection import Client

    client = Client()
    client.close()
    if os.geteuid() == client.broker_uid:
        return
    if os.geteuid() != 0:
        raise NotPermitted(f"{option} is only for the user who runs the broker.", "Ask them.")
    from gpulease.web.broker_feed import not_own

    raise not_own(client.broker_uid)


def _access(arguments: Namespace) -> Access:
    from gpulease.system.identity import user_name
    from gpulease.web.access import LOOPBACK, Access
    from gpulease.web.startup import token_of

    names = {*LOOPBACK, arguments.bind.lower(), *(name.lower() for name in arguments.allow_host)}
    if arguments.bind not in LOOPBACK:
        names.add(os.uname().nodename.lower())
    return Access(
        user_name(os.geteuid()),
        token_of(arguments.token_file),
        frozenset(names),
        arguments.public,
        arguments.actions,
        arguments.user_header,
        tuple(arguments.proxy) or Access._field_defaults["proxies"],
    )


def _begun(arguments: Namespace, access: Access, port: int) -> None:
    host = {"0.0.0.0": os.uname().nodename, "::": os.uname().nodename}.get(arguments.bind, arguments.bind)
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    if not access.public and access.user_header is None:
        address += f"?token={access.token}"
    if arguments.json:
        print_json({"address": address, "port": port, "token": access.token, "pid": os.getpid()})
    else:
        print(_told(arguments, address))
    import sys

    sys.stdout.flush()


def _told(arguments: Namespace, address: str) -> str:
    from gpulease.web.access import LOOPBACK

    if arguments.public:
        who = "Everybody who reaches it sees what everybody may see."
    elif arguments.user_header:
        who = f"Only a proxy is answered that shows the token, and says in {arguments.user_header} who looks."
    else:
        who = "Whoever has this address sees what you see" + (", and may end your jobs." if arguments.actions else ".")
    plain = [] if arguments.bind in LOOPBACK else ["It is not encrypted: put a proxy with TLS before it."]
    return "\n".join(["The page is at", f"  {address}", who, *plain, "Ctrl-C ends it."])
