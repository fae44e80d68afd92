"""`gpulease metrics`: what the GPUs do and who waits, as Prometheus reads it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping

from gpulease.cli.parsing import Any, ArgumentParser, Namespace
from gpulease.errors import UsageError, in_words

EXAMPLES = """\
`gpulease web` also serves them at /metrics.

examples:
  gpulease metrics
  gpulease metrics --textfile /var/lib/prometheus/node-exporter/gpulease.prom
  gpulease metrics --dcgm-mapping /run/dcgm-exporter/jobs
  gpulease metrics --dashboard > gpulease.json      import it in Grafana
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("--textfile", metavar="PATH", help="write this file for node_exporter's textfile collector")
    parser.add_argument("--dcgm-mapping", metavar="DIR", help="write the lease of each GPU into DIR, for dcgm-exporter")
    parser.add_argument("--dashboard", action="store_true", help="print a dashboard for Grafana")


def run(arguments: Namespace) -> int:
    if arguments.dashboard:
        if arguments.textfile or arguments.dcgm_mapping:
            raise UsageError("--dashboard prints a dashboard and nothing else.", "Leave out the other option.")
        from importlib.resources import files

        print(files("gpulease.render").joinpath("dashboard.json").read_text(), end="")
        return 0
    from gpulease.render.metrics import text

    document, totals = _asked()
    if arguments.dcgm_mapping:
        write_mapping(arguments.dcgm_mapping, document)
    if arguments.textfile:
        write_whole(arguments.textfile, text(document, totals))
    elif not arguments.dcgm_mapping:
        print(text(document, totals), end="")
    return 0


def _asked() -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Without a broker: the devices as they are seen, and no sums."""
    from gpulease.api.status import status
    from gpulease.client.connection import ask

    document = status()
    return document, ask("totals", start=False) if document.get("broker") is not None else None


def write_whole(path: str, text: str) -> None:
    """By another name beside it, which no collector reads, and then renamed."""
    folder, name = os.path.split(os.path.abspath(path))
    try:
        made, other = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        try:
            with open(made, "w") as file:
                file.write(text)
                os.fchmod(file.fileno(), 0o644)
            os.replace(other, path)
        except BaseException:
            os.unlink(other)
            raise
    except OSError as error:
        raise UsageError(
            f"{path!r} cannot be written: {in_words(error)}.", "Give a path in a folder of yours."
        ) from None


def mapping(document: Mapping[str, Any]) -> dict[str, str]:
    """For each GPU, by index, the leases on it, one a line. Without MIG instances, which have other numbers there."""
    whole = [row for row in document.get("devices", ()) if row["instance"] is None]
    return {str(row["index"]): "".join(f"{id}\n" for id in row["leases"]) for row in whole}


def write_mapping(folder: str, document: Mapping[str, Any]) -> None:
    """A GPU without a lease has no file."""
    for index, text in mapping(document).items():
        path = os.path.join(folder, index)
        if text:
            if _content(path) != text:
                write_whole(path, text)
        elif os.path.lexists(path):
            _remove(path)


def _content(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read(10_000)
    except (OSError, UnicodeDecodeError):
        return None


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        raise UsageError(f"{path!r} cannot be removed: {in_words(error)}.") from None
