"""`gpulease demo`: a tour on simulated GPUs, every step a real command that anyone may type."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from gpulease.cli.parsing import ArgumentParser, Namespace
from gpulease.render.terminal import Terminal

EXAMPLES = """\
examples:
  gpulease demo
"""
WORK = "echo process $$ sees only $CUDA_VISIBLE_DEVICES"
PATIENCE = 30  # seconds for any one step


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES


def run(arguments: Namespace) -> int:
    from gpulease.simulator.library import library_path
    from gpulease.simulator.state import create

    with tempfile.TemporaryDirectory(prefix="gpulease-demo-") as folder, ExitStack() as stack:
        machine = Path(folder) / "machine"
        create(machine, 4, "a100")
        library_path(beside=machine)  # before the tour begins, since no step of it can do without
        places = {"GPULEASE_SIMULATION": str(machine), "GPULEASE_DIR": str(Path(folder) / "broker")}
        tour = _Tour({**os.environ, **places}, Path(folder), Terminal())
        stack.callback(tour.end)
        tour.say("Four SIMULATED GPUs; no driver and no card is touched.")
        tour.occupy(stack, "0", "31G", utilization=97)
        tour.occupy(stack, "2", "12G", utilization=64)
        tour.show("status")
        tour.say("Two of them are used by real processes. Pick an idle pair:")
        tour.show("select", "--gpus", "2")
        tour.say("Run a command on a leased pair; it sees only those two, and gives them back:")
        tour.show("run", "--gpus", "2", "--", "sh", "-c", WORK)
        tour.say("Hold one for a quarter of an hour; everybody sees it, and nobody else gets it:")
        tour.show("get", "--for", "15m", "--note", "a demonstration")
        tour.show("status")
        tour.say("Who used which GPUs, and why it ended:")
        tour.show("events")
    _farewell()
    return 0


class _Tour:
    def __init__(self, environ: dict[str, str], folder: Path, terminal: Terminal) -> None:
        self._environ = environ
        self._folder = folder
        self._terminal = terminal

    def say(self, text: str) -> None:
        print(f"\n{self._terminal.paint(text, 'cyan')}", flush=True)

    def show(self, *words: str) -> None:
        shown = " ".join(f"'{word}'" if " " in word else word for word in words)
        print(self._terminal.paint(f"$ gpulease {shown}", "bold"), flush=True)
        subprocess.run(_gpulease(words), env=self._environ, check=True, timeout=PATIENCE)

    def end(self) -> None:
        subprocess.run(_gpulease(("stop",)), env=self._environ, stdout=subprocess.DEVNULL, timeout=PATIENCE)

    def occupy(self, stack: ExitStack, device: str, memory: str, utilization: int) -> None:
        """A real process that holds a simulated GPU; it says `ready` once it does, and ends with the tour."""
        (self._folder / "train.py").write_text("import sys; print('ready', flush=True); sys.stdin.read()")
        words = ("simulate", "use", device, "--memory", memory, "--", sys.executable, "train.py")
        process = subprocess.Popen(
            _gpulease(words),
            env=self._environ,
            cwd=self._folder,
            process_group=0,  # Ctrl-C ends the tour, and the tour ends this
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(process.wait, PATIENCE)
        stack.callback(process.stdin.close if process.stdin else process.kill)
        assert process.stdout is not None
        stack.callback(process.stdout.close)
        process.stdout.readline()
        settings = f"gpu.{device}.utilization={utilization}"
        subprocess.run(_gpulease(("simulate", "set", settings)), env=self._environ, check=True, timeout=PATIENCE)


def _gpulease(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "gpulease", *words]


def _farewell() -> None:
    from shutil import which

    own = os.path.join(os.path.dirname(sys.executable), "gpulease")
    program = "gpulease" if which("gpulease") else os.path.relpath(own)
    print("\nNext, on your own machine:")
    print(f"  {program} status --watch")
    print(f"  {program} run -n 1 -- python train.py")
    print(f"  {program} simulate -n 8 --profile mixed")
