"""The verbs that take `--hosts`: all hosts in one table, also one without an answer."""

from __future__ import annotations

import sys
import time

from gpulease import __version__
from gpulease.cli.parsing import Any, Namespace, clean, print_json, say
from gpulease.errors import UsageError
from gpulease.hosts import hosts
from gpulease.hosts import ssh as hosts_ssh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpulease.cli.commands.doctor import Finding
    from gpulease.render.terminal import Terminal

OF_LS = ("label", "state", "user", "most")


def _refuse(arguments: Namespace, *names: str) -> None:
    for name in names:
        if getattr(arguments, name) not in (None, False, []):
            option = name if name == "ids" else f"--{name}"
            raise UsageError(f"{option} and --hosts do not go together.", "Name one host with --host.")


# ---------------------------------------------------------------------- status


def status(arguments: Namespace) -> int:
    _refuse(arguments, "watch", "visible", "fresh", "count", "list")
    document = hosts.status(arguments.hosts)
    if arguments.json:
        print_json(document, 2)
    else:
        from gpulease.render.hosts import status_lines
        from gpulease.render.terminal import Terminal

        print("\n".join(status_lines(document["hosts"], Terminal(), time.time())))
    return _code(document)


def _code(document: dict[str, Any]) -> int:
    """69 when no host answers; one that does not is shown, and that is what was asked for."""
    return 69 if all(row["answer"] is None for row in document["hosts"]) else 0


# ---------------------------------------------------------------------- the queue


def ls(arguments: Namespace) -> int:
    _refuse(arguments, "watch", "ids")
    words = [f"--{name}={value}" for name in OF_LS if (value := getattr(arguments, name)) is not None]
    words += [f"--{name}" for name in ("mine", "all") if getattr(arguments, name)]
    document = hosts.of_all("ls", words, arguments.hosts)
    if arguments.json:
        print_json(document, 2)
    else:
        from gpulease.render.terminal import Terminal

        print("\n".join(_ls_lines(document, Terminal())))
    return _code(document)


def _ls_lines(document: dict[str, Any], terminal: Terminal) -> list[str]:
    from gpulease.cli.commands.ls import HEADINGS, REASON, job_row
    from gpulease.render.hosts import trouble_text
    from gpulease.render.terminal import plain_table

    rows: list[Sequence[str]] = [HEADINGS]
    lines = []
    for row in document["hosts"]:
        if row["answer"] is None:
            lines.append(terminal.paint(f"{row['host']}: {clean(trouble_text(row, time.time()))}", "red"))
        else:
            rows += [(f"{row['host']}:{id}", *rest) for id, *rest in map(job_row, row["answer"]["jobs"])]
            counts = ", ".join(f"{number} {state}" for state, number in sorted(row["answer"]["counts"].items()))
            lines.append(f"{row['host']}: {clean(counts) or 'no jobs'}")
    return [*lines, *(plain_table(rows, terminal, least=REASON) if len(rows) > 1 else [])]


# ---------------------------------------------------------------------- what was

OF_EVENTS = ("since", "until", "user", "gpu", "kind", "most")
OTHER = "gpulease on {0} has another version, and this one cannot read its answer."


def events(arguments: Namespace) -> int:
    _refuse(arguments, "job")
    document = _of_all("events", OF_EVENTS, arguments)
    if arguments.json:
        print_json(document, 2)
        return _code(document)
    from gpulease.render.events import HEADINGS, WHAT, table_rows
    from gpulease.render.terminal import Terminal, plain_table

    rows = _rows(document, lambda answer: table_rows(answer["events"], arguments.until is not None, time.time()))
    print("\n".join(plain_table([("HOST", *HEADINGS), *rows], Terminal(), least=WHAT)) if rows else "no such events")
    return _code(document)


def usage(arguments: Namespace) -> int:
    from gpulease.cli.commands.usage import show
    from gpulease.render.usage import of_hosts

    document = _of_all("usage", ("since", "until", "by"), arguments)
    if arguments.json:
        print_json(document, 2)
        return _code(document)
    answers = dict(_answers(document))
    if answers:
        try:
            rows, total = of_hosts(answers, arguments.by)
            first = next(iter(answers.values()))
            everybody = all(answer["everybody"] for answer in answers.values())
            merged = {**first, "everybody": everybody, "rows": rows, "total": total, "by": arguments.by}
            show(arguments, merged)  # type: ignore[arg-type]  # it has the keys of the first
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UsageError(OTHER.format("a host"), "See `gpulease doctor --hosts`.") from None
    return _code(document)


def learned(arguments: Namespace) -> int:
    _refuse(arguments, "clear")
    document = _of_all("learned", (), arguments)
    if arguments.json:
        print_json(document, 2)
        return _code(document)
    from gpulease.cli.commands.learned import COMMAND, HEADINGS, NOTHING, shape_rows
    from gpulease.render.terminal import Terminal, plain_table

    rows = _rows(document, lambda answer: shape_rows(answer["shapes"]))
    print("\n".join(plain_table([("HOST", *HEADINGS), *rows], Terminal(), least=COMMAND)) if rows else NOTHING)
    return _code(document)


def _rows(
    document: dict[str, Any], rows_of: Callable[[dict[str, Any]], Sequence[Sequence[str]]]
) -> list[Sequence[str]]:
    """Of a table with the host before each. A host that answers otherwise is told of."""
    rows: list[Sequence[str]] = []
    for host, answer in _answers(document):
        try:
            rows += [(host, *row) for row in rows_of(answer)]
        except (KeyError, TypeError, ValueError, AttributeError):
            say(f"gpulease: {OTHER.format(host)}", sys.stderr)
    return rows


def _of_all(verb: str, options: Sequence[str], arguments: Namespace) -> dict[str, Any]:
    words = [f"--{name}={value}" for name in options if (value := getattr(arguments, name)) is not None]
    return hosts.of_all(verb, words, arguments.hosts)


def _answers(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The answers that there are; why there is no other is told."""
    from gpulease.render.hosts import trouble_text

    for row in document["hosts"]:
        if row["answer"] is None:
            say(f"gpulease: {trouble_text(row, time.time())}", sys.stderr)
        else:
            yield row["host"], row["answer"]


# ---------------------------------------------------------------------- what is wrong


def findings(arguments: Namespace) -> list[Finding]:
    """Where gpulease is missing, of another version, or cannot be reached; else the worst that its doctor says."""
    document = hosts.of_all("doctor", (), arguments.hosts, hosts_ssh.patience())  # each has all the time
    return [_finding(row) for row in document["hosts"]]


def _finding(row: dict[str, Any]) -> Finding:
    from gpulease.cli.commands.doctor import Finding

    host = row["host"]
    if row["answer"] is None:
        from gpulease.render.hosts import trouble_text

        return Finding("error", host, trouble_text(row, time.time()), row["next_step"])
    answer = row["answer"]["findings"]
    version = next((one["text"] for one in answer if one["subject"] == "gpulease"), "unknown")
    if version != __version__:
        step = f"Here it is {__version__}. Install the same on both: what only one of them knows fails."
        return Finding("warning", host, f"has gpulease {version}", step)
    for level in ("error", "warning"):
        wrong = [one for one in answer if one["level"] == level and one["subject"] != "simulation"]
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            text = f"{wrong[0]['subject']}: {wrong[0]['text']}{more}"
            return Finding(level, host, text, f"See `gpulease --host {host} doctor`.")
    return Finding("ok", host, f"gpulease {version}, answers")
