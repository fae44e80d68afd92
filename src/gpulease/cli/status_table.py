"""The status document as a table of at most the terminal's width."""

from __future__ import annotations

from typing import Any

from gpulease.cli.render import Terminal, fit
from gpulease.quantities import format_bytes

STATE_COLOURS = {"free": "green", "outside": "yellow", "lost": "red"}
MOST_PROCESSES = 6
# All columns but the name: index, state, bar, memory, utilization, temperature, power, and the gaps.
FIXED = 4 + 9 + 9 + 12 + 6 + 6 + 7


def lines(document: dict[str, Any], terminal: Terminal) -> list[str]:
    name_width = min(26, terminal.width - FIXED - 1)
    shown = [_title(document, terminal), _heading(name_width, terminal)]
    for device in document["devices"]:
        shown.append(_device(device, name_width, terminal))
        shown += _details(device, terminal)
    return shown


def _title(document: dict[str, Any], terminal: Terminal) -> str:
    count = len(document["devices"])
    free = sum(device["state"] == "free" for device in document["devices"])
    noun = "GPU" if count == 1 else "GPUs"
    kind = terminal.paint("SIMULATED ", "yellow") if document["simulated"] else ""
    driver = f", driver {document['driver']}" if document["driver"] else ""
    host = fit(document["host"], min(24, len(document["host"])), terminal)
    return f"{terminal.paint(host, 'bold')}: {count} {kind}{noun}, {free} free{driver}"


def _heading(name_width: int, terminal: Terminal) -> str:
    text = f"{'GPU':>3} {'NAME':<{name_width}} {'STATE':<8} {'MEMORY':<20} {'UTIL':>5} {'TEMP':>5} {'POWER':>6}"
    return terminal.paint(text, "dim")


def _device(device: dict[str, Any], name_width: int, terminal: Terminal) -> str:
    used, total = device["memory_used"], device["memory_total"]
    fraction = used / total if used is not None and total else None
    state = terminal.paint(f"{device['state']:<8}", STATE_COLOURS.get(device["state"], ""))
    amount = f"{format_bytes(used)}/{format_bytes(total)}"
    return (
        f"{device['label']:>3} {fit(_short_name(device['name']), name_width, terminal)} {state} "
        f"{_bar(fraction, terminal)} {amount:>11} {_unit(device['utilization'], '%'):>5} "
        f"{_unit(device['temperature'], '°C' if terminal.unicode else 'C'):>5} {_watts(device['power']):>6}"
    )


def _details(device: dict[str, Any], terminal: Terminal) -> list[str]:
    if device["lost"]:
        return [terminal.paint(fit(f"      {device['lost']}", terminal.width, terminal).rstrip(), "red")]
    processes = device["processes"]
    if processes is None:
        return ["      the driver does not tell its processes"]
    shown = [_process(process, terminal) for process in processes[:MOST_PROCESSES]]
    if len(processes) > MOST_PROCESSES:
        shown.append(f"      and {len(processes) - MOST_PROCESSES} more processes")
    if device["state"] == "outside" and not any(not process["graphics"] for process in processes):
        shown.append("      memory in use that no visible process explains")
    return shown


def _process(process: dict[str, Any], terminal: Terminal) -> str:
    start = f"      {process['user'] or '?':<10} {process['pid']:>7} {format_bytes(process['memory']):>6}  "
    command = process["command"] or "(not visible from here)"
    kind = "(graphics) " if process["graphics"] else ""
    return fit(f"{start}{kind}{command}", terminal.width, terminal).rstrip()


def _bar(fraction: float | None, terminal: Terminal) -> str:
    style = "" if not fraction else "green" if fraction < 0.5 else "yellow" if fraction < 0.9 else "red"
    return terminal.paint(terminal.bar(fraction, 8), style)


def _short_name(name: str) -> str:
    for noise in ("NVIDIA ", "GeForce ", "Advanced Micro Devices, Inc. "):
        name = name.replace(noise, "")
    return name


def _unit(value: int | None, unit: str) -> str:
    return "?" if value is None else f"{value}{unit}"


def _watts(milliwatts: int | None) -> str:
    return "?" if milliwatts is None else f"{milliwatts / 1000:.0f} W"
