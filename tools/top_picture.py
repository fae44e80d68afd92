"""The picture of `gpulease top` in the docs: a simulated machine with real jobs, looked at for a while, as SVG.

python tools/top_picture.py [FILE [SECONDS]]    docs/how-to/top.svg after 50 s, so that there is some history
"""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

from gpulease.render.terminal import Terminal, width_of
from gpulease.simulator.state import create, set_values
from gpulease.tui.entries import entries, ordered
from gpulease.tui.layout import Line, Scene, frame
from gpulease.tui.live_data import LiveData
from gpulease.tui.view import View, with_valid_selection

PICTURE = Path(__file__).parent.parent / "docs" / "how-to" / "top.svg"
HOST = "lab"  # in the place of the name of the machine on which this runs
COLUMNS, ROWS = 112, 25
CELL, LINE = 8.4, 18  # pixels
BACK, FRONT = "#16181d", "#d8dee9"
COLOURS = {
    "red": "#e06c75",
    "green": "#98c379",
    "yellow": "#e5c07b",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
    "dim": "#7f8794",
    "reverse": BACK,
}
BUSY = {0: 96, 1: 82, 2: 78, 4: 60}  # percent of each GPU, around which it moves
USE = ["gpulease", "simulate", "use", "--memory"]


def main(path: Path, seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="gpulease-") as folder:
        machine = Path(folder, "machine")
        create(machine, 6, "a100")
        os.environ |= {"GPULEASE_SIMULATION": str(machine), "GPULEASE_DIR": f"{folder}/dir"}
        stranger = subprocess.Popen([*USE, "12G", "4", "--", "sleep", "600"])
        add_jobs()
        try:
            lines = watched(machine, seconds)
        finally:
            gpulease("kill", "all", "--wait")
            gpulease("stop")
            stranger.kill()
            stranger.wait()
    path.write_text(svg(lines), encoding="utf-8")


def add_jobs() -> None:
    gpulease("add", "--name", "resnet", "--time-limit", "2h", "--", *USE, "61G", "--", "sleep", "600")
    gpulease("add", "-n", "2", "--time-limit", "5h", "--name", "finetune", "--", *USE, "38G", "--", "sleep", "601")
    gpulease("get", "--devices", "3", "--for", "4h", "--note", "paper deadline")
    gpulease("add", "-n", "0", "--name", "prepare data", "--", "true")
    gpulease("add", "-n", "0", "--name", "lint", "--force", "--", "false")
    gpulease("wait", "3", "4")
    gpulease("add", "-n", "2", "--time-limit", "1h", "--name", "evaluate", "--", "sleep", "602")
    gpulease("add", "--sweep", "lr=0.1,0.01,0.001", "-n", "4", "--name", "sweep lr={lr}", "--", "sleep", "60{lr}")


def gpulease(*words: str) -> None:
    subprocess.run(["gpulease", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def watched(machine: Path, seconds: float) -> list[Line]:
    """The frame that `top` draws after that time."""
    live, chance, began = LiveData(), random.Random(7), time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        load = {gpu: max(0, min(100, percent + chance.randint(-20, 12))) for gpu, percent in BUSY.items()}
        set_values(machine, [f"gpu.{gpu}.{key}" for gpu, value in load.items() for key in signs(value)])
        while time.monotonic() < now + 1:
            live.turn(time.monotonic())
            time.sleep(0.05)
        for device in live.seen.status["devices"]:
            live.history.add(device["uuid"], time.time(), device["utilization"])
    seen = live.seen._replace(status={**live.seen.status, "host": HOST})
    rows = ordered(entries(seen, time.time()), "order", False)
    terminal = Terminal(io.StringIO())
    terminal.unicode = True
    return frame(
        Scene(seen, rows, live.history, time.time()), with_valid_selection(View(), rows), COLUMNS, ROWS, terminal
    )


def signs(percent: int) -> list[str]:
    """Of a GPU that is so busy: it draws power, and is warm."""
    return [f"utilization={percent}", f"power={62 + 3 * percent}W", f"temperature={31 + percent * 2 // 5}"]


def svg(lines: list[Line]) -> str:
    width, height = COLUMNS * CELL + 20, len(lines) * LINE + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img"'
        f' aria-label="gpulease top on a simulated machine" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace"'
        f' font-size="14" xml:space="preserve">',
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{BACK}"/>',
    ]
    for number, line in enumerate(lines):
        column = 0
        for text, style in line:
            parts += span(text, style, 10 + column * CELL, 10 + number * LINE)
            column += width_of(text)
    return "\n".join([*parts, "</svg>"]) + "\n"


def span(text: str, style: str, x: float, y: float) -> list[str]:
    length = width_of(text) * CELL
    back = f'<rect x="{x:g}" y="{y:g}" width="{length:g}" height="{LINE}" fill="{FRONT}"/>'
    bold = ' font-weight="bold"' if style == "bold" else ""
    place = f'x="{x:g}" y="{y + 13.5:g}" textLength="{length:g}" lengthAdjust="spacingAndGlyphs"'
    letters = f'<text {place} fill="{COLOURS.get(style, FRONT)}"{bold}>{escape(text)}</text>'
    return [*([back] if style == "reverse" else []), *([letters] if text.strip() else [])]


if __name__ == "__main__":
    main(
        Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE,
        float(sys.argv[2]) if len(sys.argv) > 2 else 50.0,
    )
