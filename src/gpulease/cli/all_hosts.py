"""`status`, `ls` and `doctor` with `--hosts`: all hosts in one table. One that does not answer has a row too."""

from __future__ import annotations

from gpulease import __version__, hosts
from gpulease.cli.parsing import Any, Namespace, clean, print_json
from gpulease.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpulease.cli.doctor import Finding
    from gpulease.cli.render import Terminal

STATES = {
    "free": ".", "leased": "L", "shared": "S", "outside": "O", "draining": "D", "excluded": "X", "lost": "!",
}  # fmt: skip
LEGEND = ". free, L leased, S shared, O outside use, D draining, X excluded, ! lost"
OF_LS = ("label", "state", "user", "most")
TOLD = 3  # users that are named


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
        from gpulease.cli.render import Terminal

        print("\n".join(status_lines(document, Terminal())))
    return _code(document)


def _code(document: dict[str, Any]) -> int:
    """69 when no host answers; one that does not is shown, and that is what was asked for."""
    return 69 if all(row["answer"] is None for row in document["hosts"]) else 0


def status_lines(document: dict[str, Any], terminal: Terminal) -> list[str]:
    from gpulease.cli.render import plain_table

    rows: list[Sequence[str]] = [("HOST", "GPUS", "FREE", "WAIT", "STATE", "USED BY")]
    rows += [_status_row(row) for row in document["hosts"]]
    lines = plain_table(rows, terminal, least=30)
    shown = [
        line if row["trouble"] is None else terminal.paint(line, "red")
        for row, line in zip(document["hosts"], lines[1:], strict=True)
    ]
    simulated = [row["host"] for row in document["hosts"] if row["answer"] and row["answer"]["simulated"]]
    head = [f"SIMULATED GPUs: {', '.join(simulated)}"] if simulated else []
    return [*head, lines[0], *shown, terminal.paint(LEGEND, "dim")]


def _status_row(row: dict[str, Any]) -> tuple[str, ...]:
    told = row["answer"]
    if told is None:
        return (row["host"], "-", "-", "-", "-", row["trouble"])
    from gpulease.cli.status_table import short_name

    devices = told["devices"]
    names = [short_name(one["name"]) for one in devices]
    models = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
    free = sum(one["state"] == "free" for one in devices)
    letters = "".join(STATES.get(one["state"], "?") for one in devices)
    return (row["host"], models or "none", str(free), str(told["line_length"]), letters, _users(told))


def _users(told: dict[str, Any]) -> str:
    """Who holds how many, and what is wrong there."""
    held: dict[str, int] = {}
    for lease in told["leases"]:
        held[lease["user"]] = held.get(lease["user"], 0) + len(lease["labels"])
    parts = [f"{user} {held[user]}" for user in sorted(held, key=lambda user: (-held[user], user))[:TOLD]]
    more = len(held) - TOLD
    parts += [f"{more} more users"] if more > 0 else []
    return ", ".join([*parts, *([told["trouble"]] if told.get("trouble") else [])])


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
    from gpulease.cli.ls import HEADINGS, REASON, job_row
    from gpulease.cli.render import plain_table

    rows: list[Sequence[str]] = [HEADINGS]
    lines = []
    for row in document["hosts"]:
        if row["answer"] is None:
            lines.append(terminal.paint(f"{row['host']}: {clean(row['trouble'])}", "red"))
        else:
            rows += [(f"{row['host']}:{id}", *rest) for id, *rest in map(job_row, row["answer"]["jobs"])]
            counts = ", ".join(f"{number} {state}" for state, number in sorted(row["answer"]["counts"].items()))
            lines.append(f"{row['host']}: {counts or 'no jobs'}")
    return [*lines, *(plain_table(rows, terminal, least=REASON) if len(rows) > 1 else [])]


# ---------------------------------------------------------------------- what is wrong


def findings(arguments: Namespace) -> list[Finding]:
    """Where gpulease is missing, of another version, or cannot be reached; else the worst that its doctor says."""
    document = hosts.of_all("doctor", (), arguments.hosts)
    return [_finding(row) for row in document["hosts"]]


def _finding(row: dict[str, Any]) -> Finding:
    from gpulease.cli.doctor import Finding

    host = row["host"]
    if row["answer"] is None:
        return Finding("error", host, row["trouble"], row["next_step"])
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
