"""`status`, `ls` and `doctor` with `--hosts`: all hosts in one table. One that does not answer has a row too."""

from __future__ import annotations

from gpulease import __version__, hosts, ssh
from gpulease.cli.parsing import Any, Namespace, clean, print_json
from gpulease.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpulease.cli.doctor import Finding
    from gpulease.cli.render import Terminal

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
        from gpulease.cli.host_rows import status_lines
        from gpulease.cli.render import Terminal

        print("\n".join(status_lines(document["hosts"], Terminal())))
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
        from gpulease.cli.render import Terminal

        print("\n".join(_ls_lines(document, Terminal())))
    return _code(document)


def _ls_lines(document: dict[str, Any], terminal: Terminal) -> list[str]:
    from gpulease.cli.host_rows import trouble_text
    from gpulease.cli.ls import HEADINGS, REASON, job_row
    from gpulease.cli.render import plain_table

    rows: list[Sequence[str]] = [HEADINGS]
    lines = []
    for row in document["hosts"]:
        if row["answer"] is None:
            lines.append(terminal.paint(f"{row['host']}: {clean(trouble_text(row))}", "red"))
        else:
            rows += [(f"{row['host']}:{id}", *rest) for id, *rest in map(job_row, row["answer"]["jobs"])]
            counts = ", ".join(f"{number} {state}" for state, number in sorted(row["answer"]["counts"].items()))
            lines.append(f"{row['host']}: {clean(counts) or 'no jobs'}")
    return [*lines, *(plain_table(rows, terminal, least=REASON) if len(rows) > 1 else [])]


# ---------------------------------------------------------------------- what is wrong


def findings(arguments: Namespace) -> list[Finding]:
    """Where gpulease is missing, of another version, or cannot be reached; else the worst that its doctor says."""
    document = hosts.of_all("doctor", (), arguments.hosts, ssh.patience())  # each has all the time
    return [_finding(row) for row in document["hosts"]]


def _finding(row: dict[str, Any]) -> Finding:
    from gpulease.cli.doctor import Finding

    host = row["host"]
    if row["answer"] is None:
        from gpulease.cli.host_rows import trouble_text

        return Finding("error", host, trouble_text(row), row["next_step"])
    told = row["answer"]["findings"]
    version = next((one["text"] for one in told if one["subject"] == "gpulease"), "unknown")
    if version != __version__:
        step = f"Here it is {__version__}. Install the same on both: what only one of them knows fails."
        return Finding("warning", host, f"has gpulease {version}", step)
    for level in ("error", "warning"):
        wrong = [one for one in told if one["level"] == level and one["subject"] != "simulation"]
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            text = f"{wrong[0]['subject']}: {wrong[0]['text']}{more}"
            return Finding(level, host, text, f"See `gpulease --host {host} doctor`.")
    return Finding("ok", host, f"gpulease {version}, answers")
