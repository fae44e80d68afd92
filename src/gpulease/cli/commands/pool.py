"""`gpulease pool`: named pools of warm workers, which stay between programs."""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any

from gpulease.cli.parsing import add_json
from gpulease.errors import NotFound

EXAMPLES = """\
Your programs use the workers with gpulease.Pool.connect("NAME").

examples:
  gpulease pool start llm --gpus 4 --init model:load
  gpulease pool start sums --gpus all-idle --shared matrix.npz
  gpulease pool ls
  gpulease pool grow llm --gpus 2
  gpulease pool log llm --follow
  gpulease pool stop llm
"""
USAGE = """\
gpulease pool start NAME [--gpus N] [--init MODULE:FUNCTION] …
       gpulease pool grow NAME [--gpus N] [--devices IDS]
       gpulease pool ls [--json]
       gpulease pool log NAME [--lines N] [--follow]
       gpulease pool stop [--now] NAME …"""
POLL = 0.05  # seconds between looks at a pool that starts, stops or writes


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.usage = USAGE
    actions = parser.add_subparsers(
        dest="action",
        metavar="start | grow | ls | log | stop",
        required=True,
        help="each has its own --help",
        prog="gpulease pool",
    )
    _configure_start(actions.add_parser("start", help="start a pool and keep its workers warm"))
    _configure_grow(actions.add_parser("grow", help="add workers; programs that use the pool get them at once"))
    add_json(actions.add_parser("ls", help="list your pools"))
    log = actions.add_parser("log", help="print the output of the pool and its workers")
    log.add_argument("name", metavar="NAME", help="the pool")
    log.add_argument("--lines", "-n", type=_lines, default=50, metavar="N", help="the last N lines (default 50)")
    log.add_argument("--follow", "-f", action="store_true", help="keep printing until the pool ends")
    stop = actions.add_parser("stop", help="end pools, after the items that run now")
    stop.add_argument("names", nargs="+", metavar="NAME", help="the pools")
    stop.add_argument("--now", action="store_true", help="do not wait for running items; they fail")


def _configure_start(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help="a name, by which programs find the pool")
    add("--gpus", "-n", type=_gpus, default=1, metavar="N", help="number of GPUs in total (default 1), or all-idle")
    add("--gpus-per-worker", type=int, default=1, metavar="N", help="number of GPUs of each worker (default 1)")
    add("--init", metavar="MODULE:FUNCTION", help="run this once in each worker; its result is gpulease.worker().state")
    add(
        "--shared",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="load these files once for all workers: .npz, .npy or others",
    )
    add("--max-items", type=int, metavar="N", help="replace a worker after N items, for example if it leaks memory")
    add("--mem", metavar="SIZE", help="each worker shares a GPU and takes this much of its memory, as 6G")
    add("--model", metavar="MODELS", help="only this GPU model; several in order of preference: A100,V100")
    add("--devices", "-d", metavar="IDS", help="only these GPUs: indices or UUIDs, as 0,2")
    add("--exclude", metavar="IDS", help="not these GPUs, as 1,3")
    add("--min-memory", metavar="SIZE", help="only GPUs with at least this much memory in total, as 40G")
    add("--priority", "-p", type=int, metavar="P", help="a smaller number is sooner (default 5; with all-idle 100)")
    add("--note", metavar="TEXT", help="a text for other users, shown in `gpulease status`")


def _configure_grow(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help="the pool")
    add("--gpus", "-n", type=int, default=1, metavar="N", help="number of GPUs to add (default 1)")
    add("--devices", "-d", metavar="IDS", help="only these GPUs for the new workers, as 0,2")


def _gpus(text: str) -> int | str:
    if text == "all-idle":
        return text
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text[:40]!r} is neither a number nor all-idle") from None


def _lines(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text[:40]!r} is not a number of lines")
    return int(text)


def run(arguments: Namespace) -> int:
    return {"start": _start, "grow": _grow, "ls": _list, "log": _log, "stop": _stop}[arguments.action](arguments)


# -------------------------------------------------------------------- start


def _start(arguments: Namespace) -> int:
    from gpulease.pool.places import start

    start(
        arguments.name,
        gpus=arguments.gpus,
        gpus_per_worker=arguments.gpus_per_worker,
        init=arguments.init,
        shared=tuple(arguments.shared),
        max_items=arguments.max_items,
        mem=arguments.mem,
        model=arguments.model,
        devices=arguments.devices,
        exclude=arguments.exclude,
        min_memory=arguments.min_memory,
        priority=arguments.priority,
        note=arguments.note,
    )
    return _report(arguments.name)


def _report(name: str) -> int:
    from gpulease.pool.places import wait_for_workers

    states = wait_for_workers(name)
    waiting, failed = states.count("waiting"), states.count("failed")
    text = f", {waiting} waiting for a GPU" if waiting else ""
    text += f", {failed} failed (see `gpulease pool log {name}`)" if failed else ""
    print(f"{name}: {states.count('ready')} ready{text}")
    return 0


# -------------------------------------------------------------------- grow


def _grow(arguments: Namespace) -> int:
    from gpulease.pool.places import ask
    from gpulease.pool.plan import check_devices, make_plan

    pool = ask(arguments.name, "status")
    each = pool["request"]["gpus"]
    there = 0 if arguments.devices else len(pool["workers"]) * each
    request = {name: value for name, value in pool["request"].items() if name != "gpus"}
    request |= {"devices": arguments.devices} if arguments.devices else {}
    check_devices(make_plan(there + arguments.gpus, each, request))
    ask(arguments.name, "grow", gpus=arguments.gpus, request={"devices": arguments.devices})
    return _report(arguments.name)


def _last_trouble(name: str) -> str:
    from gpulease.pool.places import path_of

    with open(path_of(name, "log"), errors="replace") as file:
        ends = [line for line in file if f"pool {name} ends: " in line]
    return ends[-1].partition(" ends: ")[2].strip() if ends else "its log says why."


# -------------------------------------------------------------------- ls, log, stop


def _list(arguments: Namespace) -> int:
    found = [pool for pool in map(_status, _names()) if pool is not None]
    if arguments.json:
        import json

        print(json.dumps({"pools": found}))
        return 0
    if not found:
        print("no pools")
        return 0
    from gpulease.render.terminal import Terminal, plain_table

    rows = [("NAME", "PID", "READY", "GPU", "PROGRAMS", "SINCE"), *map(_row, found)]
    print("\n".join(plain_table(rows, Terminal())))
    return 0


def _names() -> list[str]:
    from gpulease.pool.places import names

    return names()


def _status(name: str) -> dict[str, Any] | None:
    from gpulease.errors import PoolClosed, PoolError
    from gpulease.pool.places import ask

    try:
        return ask(name, "status")
    except (NotFound, PoolClosed, ConnectionError):
        return None  # its process was killed; the socket is only a file
    except PoolError as error:
        print(f"gpulease: {error.what} {error.next_step}", file=sys.stderr)  # the others are shown all the same
        return None


def _row(pool: dict[str, Any]) -> tuple[str, ...]:
    ready = [worker for worker in pool["workers"] if worker["state"] == "ready"]
    since = time.strftime("%m-%d %H:%M", time.localtime(pool["since"]))
    gpus = ",".join(worker["gpus"] for worker in ready)
    return (pool["name"], str(pool["pid"]), f"{len(ready)}/{len(pool['workers'])}", gpus, str(pool["programs"]), since)


def _log(arguments: Namespace) -> int:
    from collections import deque

    from gpulease.pool.places import listens, path_of

    path = path_of(arguments.name, "log")
    if not os.path.exists(path):
        raise NotFound(f"There is no log of a pool {arguments.name!r}.", "`gpulease pool ls` lists the pools.")
    with open(path, errors="replace") as file:
        sys.stdout.writelines(deque(file, maxlen=arguments.lines))
        while arguments.follow:
            sys.stdout.write(file.read())
            sys.stdout.flush()
            if not listens(arguments.name):
                sys.stdout.write(file.read())
                break
            time.sleep(POLL)
    return 0


def _stop(arguments: Namespace) -> int:
    from gpulease.pool.places import ask

    for name in arguments.names:
        try:
            stopped = ask(name, "stop", now=arguments.now)["workers"]
            pool = f": {stopped} worker{'' if stopped == 1 else 's'}"
        except ConnectionError:
            pool = ""  # somebody else ended it while it was asked
        while _exists(name):
            time.sleep(POLL)
        print(f"stopped {name}{pool}")
    return 0


def _exists(name: str) -> bool:
    from gpulease.pool.places import listens, socket_path

    return os.path.exists(socket_path(name)) and listens(name)
