"""`gpulease metrics`: what the GPUs do and who waits, as Prometheus reads it."""

from __future__ import annotations

from gpulease.cli.parsing import Any, ArgumentParser, Namespace
from gpulease.errors import UsageError

EXAMPLES = """\
`gpulease web` serves the same at /metrics.

examples:
  gpulease metrics
  gpulease metrics --textfile /var/lib/prometheus/node-exporter/gpulease.prom
  gpulease metrics --dcgm-mapping /run/dcgm-exporter/jobs
  gpulease metrics --dashboard > gpulease.json      import it in Grafana
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("--textfile", metavar="PATH", help="write it there, for node_exporter's textfile collector")
    parser.add_argument("--dcgm-mapping", metavar="DIR", help="write the lease of each GPU into DIR, for dcgm-exporter")
    parser.add_argument("--dashboard", action="store_true", help="print a dashboard for Grafana instead")


def run(arguments: Namespace) -> int:
    if arguments.dashboard:
        if arguments.textfile or arguments.dcgm_mapping:
            raise UsageError("--dashboard prints a dashboard and nothing else.", "Leave out the other option.")
        from importlib.resources import files

        print(files("gpulease.render").joinpath("dashboard.json").read_text(), end="")
        return 0
    from gpulease.cli.metrics_files import write_mapping, write_whole
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
