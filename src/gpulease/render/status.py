"""The status document as a table of at most the terminal's width."""

from __future__ import annotations

from gpulease.model.quantities import format_bytes, span_text
from gpulease.render.terminal import Terminal, clean, fit, plain_table
from gpulease.render.times import clock, start_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STATE_COLOURS = {
    "free": "green",
    "leased": "cyan",
    "shared": "magenta",
    "outside": "yellow",
    "draining": "yellow",
    "excluded": "dim",
    "lost": "red",
    "unknown": "yellow",
}
PLACEHOLDER = "placeholder of gpulease"  # the command of one, as it is shown
MAX_PROCESSES = 6
MAX_WAITING = 20
WITH_START = 72  # columns, so that there is room for expected starts
WHY = 24  # columns: the longest short form of a reason
NARROWEST_NAME = 10
LONGEST_LABEL = 24
# heading, width, whether it stands to the right
COLUMNS = {
    "GPU": (3, True),
    "NAME": (26, False),
    "STATE": (8, False),
    "MEMORY": (8, False),
    "": (11, True),
    "UTIL": (5, True),
    "TEMP": (5, True),
    "POWER": (6, True),
}
# What a narrow terminal does without, in this order.
DISPENSABLE = ("MEMORY", "POWER", "TEMP")
ONE_QUEUE = "For one queue: `gpulease install --system` (root), or `gpulease broker --shared`."


def lines(document: dict[str, Any], terminal: Terminal, now: float) -> list[str]:
    broker = document["broker"]
    if broker is not None and broker["kind"] == "slurm":
        from gpulease.render.hosts import MAX_DEVICES, node_lines

        if len(document["devices"]) > MAX_DEVICES:
            shown = [*_title(document, terminal), *node_lines(document, terminal)]
            return shown + _line(document, terminal, now) + _troubles(document, terminal)
    widths = _widths(terminal.width, max((len(device["label"]) for device in document["devices"]), default=0))
    shown = [*_title(document, terminal), *_down(document, terminal), _heading(widths, terminal)]
    for device in document["devices"]:
        cells = _cells(device, terminal)
        shown.append(" ".join(_cell(heading, cells[heading], widths, terminal) for heading in widths))
        shown += _holders(device, document, terminal, now)
        shown += _details(device, terminal, now)
    return (
        shown + _without_gpu(document, terminal, now) + _line(document, terminal, now) + _troubles(document, terminal)
    )


def _without_gpu(document: dict[str, Any], terminal: Terminal, now: float) -> list[str]:
    leases = [lease for lease in document["leases"] if not lease["devices"]]
    if not leases:
        return []
    jobs = "1 job" if len(leases) == 1 else f"{len(leases)} jobs"
    rows = [fit(holder_text(lease, now), terminal.width, terminal).rstrip() for lease in leases[:MAX_WAITING]]
    more = len(leases) - MAX_WAITING
    return [
        f"{jobs} without a GPU:",
        *(terminal.paint(row, "cyan") for row in rows),
        *([f"      and {more} more"] * (more > 0)),
    ]


def _holders(device: dict[str, Any], document: dict[str, Any], terminal: Terminal, now: float) -> list[str]:
    leases = [lease for lease in document["leases"] if lease["id"] in device["leases"]]
    return [terminal.paint(fit(holder_text(lease, now), terminal.width, terminal).rstrip(), "cyan") for lease in leases]


def holder_text(lease: dict[str, Any], now: float) -> str:
    who = f"{lease['user']}" + (f" (pid {lease['pid']})" if lease["pid"] else "")
    share = f", {format_bytes(lease['memory'])}" if lease["memory"] else ""
    end = f", until {clock(lease['until'], now)}" if lease["until"] else ""
    if lease["kind"] == "reservation" and not lease["until"]:
        end = f" ({span_text(now - lease['since'])}), until released"
    note = "".join(f": {text}" for text in (lease.get("job"), lease["note"]) if text)
    ending = f", ending: {lease['ending']}" if lease.get("ending") else ""
    return f"      {lease['id']} {lease['kind']} by {who}{ending}{share}, since {clock(lease['since'], now)}{end}{note}"


def _line(document: dict[str, Any], terminal: Terminal, now: float) -> list[str]:
    if not document["line"]:
        return []
    narrow = terminal.cuts and terminal.width < WITH_START
    rows = [("LINE", "USER", "WANTS", "PRIO", "SINCE", *([] if narrow else ["START"]), "WHY")]
    for entry in document["line"][:MAX_WAITING]:
        wants = (
            format_bytes(entry["memory"])
            if entry["memory"]
            else (f"{entry['gpus']} GPU" if entry["gpus"] else "no GPU")
        )
        short = entry.get("why_short") or entry["why"]
        why = f"{short} ({entry['note']})" if entry["note"] else short
        times = [clock(entry["since"], now), *([] if narrow else [start_text(entry, now)])]
        rows.append((entry["id"], entry["user"], wants, str(entry["priority"]), *times, why))
    more = document["line_length"] - MAX_WAITING
    return ["", *plain_table(rows, terminal, least=WHY), *([f"and {more} more"] if more > 0 else [])]


def _down(document: dict[str, Any], terminal: Terminal) -> list[str]:
    """That a broker belongs here and cannot be asked, before anything that would be read wrongly without it."""
    shown = document["trouble"] if document["broker"] is None else None
    return [terminal.paint(clean(shown), "red")] if shown else []


def _troubles(document: dict[str, Any], terminal: Terminal) -> list[str]:
    shown = []
    broker = document["broker"]
    if broker is not None and broker["kind"] == "slurm":
        shown.append(terminal.paint(f"Slurm {broker['version']}", "dim"))
    elif broker is not None and broker["kind"] != "own":
        shown.append(terminal.paint(f"{broker['kind']} broker of {broker['user']}", "dim"))
    if broker is not None and broker.get("state_trouble"):
        shown.append(terminal.paint(clean(broker["state_trouble"]), "red"))
    if document.get("passed_by"):
        who = clean(", ".join(document["passed_by"]))
        shown.append(terminal.paint(f"kept safe-gpu's lock too long, and is not waited for now: {who}", "yellow"))
    down = broker is None and document["trouble"]  # then what its own leases hold is claimed by nobody else
    if (others := other_brokers(document)) and not down:
        shown.append(terminal.paint(f"Several brokers share these GPUs: also that of {', '.join(others)}.", "yellow"))
        shown.append(terminal.paint(ONE_QUEUE, "dim"))
    if document["trouble"] and broker is not None:
        age = "" if document["sample_age"] is None else f" (what is shown is {document['sample_age']:.0f} s old)"
        shown.append(terminal.paint(f"{document['trouble']}{age}", "red"))
    return shown


def other_brokers(document: dict[str, Any]) -> list[str]:
    """Users whose own brokers hold some of these devices, or the system's."""
    shown = document.get("neighbours", {}).get("gpulease", {})
    return sorted({clean(holder["user"]) for holder in shown.get("holders", {}).values()})


def _widths(available: int, label: int = 0) -> dict[str, int]:
    """The columns that fit, the name taking what is left; GPUs of many nodes have longer labels."""
    widths = {heading: width for heading, (width, _) in COLUMNS.items()}
    widths["GPU"] = min(max(label, widths["GPU"]), LONGEST_LABEL)
    for heading in DISPENSABLE:
        rest = available - (sum(widths.values()) - widths["NAME"] + len(widths) - 1)
        if rest >= NARROWEST_NAME:
            break
        del widths[heading]
    rest = available - (sum(widths.values()) - widths["NAME"] + len(widths) - 1)
    widths["NAME"] = max(1, min(rest, widths["NAME"]))
    return widths


def _title(document: dict[str, Any], terminal: Terminal) -> list[str]:
    driver = f", driver {document['driver']}" if document["driver"] else ""
    host = fit(document["host"], min(24, len(document["host"])), terminal)
    rest = f": {totals(document['devices'], 'SIMULATED ' if document['simulated'] else '')}{driver}"
    memory = host_memory(document)
    whole = f"{rest}, {memory}" if memory else rest
    below = [] if len(host) + len(whole) <= terminal.width else [memory]
    rest = fit(rest if below else whole, max(0, terminal.width - len(host)), terminal).rstrip()
    return [terminal.paint(host, "bold") + rest.replace("SIMULATED", terminal.paint("SIMULATED", "yellow")), *below]


def totals(devices: list[dict[str, Any]], mark: str) -> str:
    """MIG instances are parts of a GPU, and counted apart."""
    count = len({device["index"] for device in devices})
    whole = [device["state"] for device in devices if device["instance"] is None]
    parts = [device["state"] for device in devices if device["instance"] is not None]
    gpus = f"{count} {mark}GPU{'' if count == 1 else 's'}"
    if not parts:
        return f"{gpus}, {_free(whole)}"
    free = f", {_free(whole)}" if whole else ""
    return f"{gpus}{free}; {len(parts)} MIG instance{'' if len(parts) == 1 else 's'}, {_free(parts)}"


def _free(states: list[str]) -> str:
    return "free: unknown" if "unknown" in states else f"{states.count('free')} free"


def host_memory(document: dict[str, Any]) -> str:
    total, available = document.get("host_memory_total"), document.get("host_memory_available")
    if total is None or available is None:
        return ""
    return f"{format_bytes(available)} of {format_bytes(total)} RAM free"


def _heading(widths: dict[str, int], terminal: Terminal) -> str:
    names = {"": "" if "MEMORY" in widths else "MEMORY"}  # the bar has it, where there is room for one
    cells = (fit(names.get(key, key), width, terminal, COLUMNS[key][1]) for key, width in widths.items())
    return terminal.paint(" ".join(cells), "dim")


def _cells(device: dict[str, Any], terminal: Terminal) -> dict[str, tuple[str, str]]:
    """Text and colour of each cell."""
    used, total = device["memory_used"], device["memory_total"]
    fraction = used / total if used is not None and total else None
    return {
        "GPU": (device["label"], ""),
        "NAME": (short_name(device["name"]), ""),
        "STATE": (device["state"], STATE_COLOURS.get(device["state"], "")),
        "MEMORY": (terminal.bar(fraction, 8), bar_colour(fraction)),
        "": (f"{format_bytes(used)}/{format_bytes(total)}", ""),
        "UTIL": (unit(device["utilization"], "%"), ""),
        "TEMP": (unit(device["temperature"], "°C" if terminal.unicode else "C"), ""),
        "POWER": (watts(device["power"]), ""),
    }


def _cell(heading: str, cell: tuple[str, str], widths: dict[str, int], terminal: Terminal) -> str:
    text, colour = cell
    return terminal.paint(fit(text, widths[heading], terminal, COLUMNS[heading][1]), colour)


def _details(device: dict[str, Any], terminal: Terminal, now: float) -> list[str]:
    if device["lost"]:
        return [terminal.paint(fit(f"      {device['lost']}", terminal.width, terminal).rstrip(), "red")]
    processes = device["processes"]
    if processes is None:
        return ["      the driver does not report its processes"]
    intruders = device["outside"] if device["leases"] else ()
    shown = _slowed(device, terminal)
    shown += [_process(one, terminal, one["pid"] in intruders) for one in processes[:MAX_PROCESSES]]
    if len(processes) > MAX_PROCESSES:
        shown.append(f"      and {len(processes) - MAX_PROCESSES} more processes")
    holder = device.get("holder")
    if device["state"] == "outside" and (holder or not device["outside"]):
        since = f", since {clock(holder['since'], now)}" if holder and holder["since"] else ""
        note = f"{device['note'] or 'memory in use that no visible process explains'}{since}"
        shown.append(fit(f"      {clean(note)}", terminal.width, terminal).rstrip())
    if device["state"] in ("excluded", "leased", "shared") and device["note"]:
        shown.append(fit(f"      {device['note']}", terminal.width, terminal).rstrip())
    return shown


def _slowed(device: dict[str, Any], terminal: Terminal) -> list[str]:
    """By power or heat; that somebody set its clocks is no trouble."""
    reasons = [reason for reason in device.get("throttling") or () if reason.startswith(("sw_", "hw_"))]
    return [terminal.paint(f"      slowed down: {', '.join(reasons)}", "yellow")] if reasons else []


def _process(process: dict[str, Any], terminal: Terminal, intrudes: bool = False) -> str:
    start = f"      {process['user'] or '?':<10} {process['pid']:>7} {format_bytes(process['memory']):>6}  "
    command = short_command(process["command"] or "(unknown command)")
    kind = "(graphics) " if process["graphics"] else "WITHOUT A LEASE: " if intrudes else ""
    return terminal.paint(
        fit(f"{start}{kind}{command}", terminal.width, terminal).rstrip(), "yellow" if intrudes else ""
    )


def short_command(command: str) -> str:
    """Without the folder of the program: what is run matters more than where it lies."""
    program, space, rest = command.partition(" ")
    return f"{program.rpartition('/')[2] or program}{space}{rest}"


def bar_colour(fraction: float | None) -> str:
    return "" if not fraction else "green" if fraction < 0.5 else "yellow" if fraction < 0.9 else "red"


def short_name(name: str) -> str:
    for noise in ("NVIDIA ", "GeForce ", "Advanced Micro Devices, Inc. "):
        name = name.replace(noise, "")
    return name


def unit(value: int | None, unit: str) -> str:
    return "?" if value is None else f"{value}{unit}"


def watts(milliwatts: int | None) -> str:
    return "?" if milliwatts is None else f"{milliwatts / 1000:.0f} W"
