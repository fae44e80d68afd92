"""docs/how-to/from-sge-template.md is true in every row: what stands there is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compat.test_sge import PATIENCE, Checkout
from support.machine import Machine
from support.waiting import wait_until

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "from-sge-template.md").read_text()
USE = """
import numpy as np, gpulease
matrix, items = np.eye(4), [(np.ones((3, 4)), np.ones((4, 3)))] * 4
def expensive_task(A, B):
    return float(((A @ gpulease.worker().shared["matrix_c"]) @ B).sum()), gpulease.worker().gpus
"""


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found.group(1)


def rows() -> dict[str, tuple[str, str]]:
    """you typed -> (you type, or type nothing new)."""
    table = PAGE.partition("| you typed |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]
    assert all(len(row) == 3 for row in cells), cells
    return {typed: (new, old) for typed, new, old in cells}


def code(cell: str) -> str:
    """What stands first in a cell as code; the cell itself if there is none."""
    found = re.search(r"`([^`]+)`", cell)
    return found.group(1) if found else cell


def test_what_the_page_does_with_a_checkout_lets_its_main_run(machine: Machine, tmp_path: Path) -> None:
    checkout = Checkout(machine, tmp_path)
    try:
        for name in ("start_agents.sh", "gpu_session.py"):
            (checkout.place / name).unlink()
            (checkout.place / name).write_text("#!/bin/sh\nexit 1\n")
        (checkout.place / "sge").mkdir(exist_ok=True)
        for name in ("__init__", "master", "jobs"):
            (checkout.place / "sge" / f"{name}.py").write_text("raise RuntimeError('the old one')\n")
        python = Path(sys.executable).parent
        environ = {**machine.environ, "CALLS": str(checkout.calls)}
        environ["PATH"] = f"{python}:{machine.environ['PATH']}"
        typed = block("bash").replace("~/", f"{tmp_path}/")
        words = ["bash", "-ec", f'gpulease() {{ python -m gpulease "$@"; }}\n{typed}']
        done = subprocess.run(words, cwd=checkout.place, env=environ, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("Collected job result") == 10
        shims = tmp_path / "gpulease-shims" / "bin"
        assert (checkout.place / "gpu_session.py").resolve() == (shims / "gpu_session.py").resolve()
    finally:
        checkout.close()


def test_every_row_says_what_is_so(machine: Machine, tmp_path: Path) -> None:
    checkout = Checkout(machine, tmp_path)
    try:
        checked = Rows(checkout).check()
    finally:
        checkout.close()
    assert checked == list(rows()), "each row of the page, and no other"


class Rows:
    """Types what stands in the second column and, where test_sge.py does not, in the third."""

    def __init__(self, checkout: Checkout) -> None:
        self.checkout, self.rows = checkout, rows()
        self.ready = ""

    def check(self) -> list[str]:
        for typed, (new, old) in self.rows.items():
            self.find(typed)(code(new), code(old))
        return list(self.rows)

    def find(self, typed: str) -> Callable[[str, str], Any]:
        steps = {
            "`start_agents.sh 2 BASE`": self.start_agents,
            "`python gpu_session.py 2 BASE`": self.session,
            "one more `gpu_session.py`": self.grow,
            "`python main.py` with `HOT_START = False`": self.cold,
            "`python main.py` with `HOT_START = True`": self.hot,
            "`Job(name=name": self.map,
            "a `deploy()`": lambda new, old: None,  # nothing to type
            "`shared_data_path=": self.shared,
            "`cuda:{gpu_id}`": self.device,
            "`cat BASE/log/0.log`": self.log,
            "`tmux kill-session": self.stop,
            "`watch -n 1": self.watch,
        }
        return next(step for begin, step in steps.items() if typed.startswith(begin))

    # ---------------------------------------------------------------- the rows

    def start_agents(self, new: str, old: str) -> None:
        assert self.gpulease(new).stdout == "mine: 2 ready\n"
        done = self.checkout.here(*old.replace("BASE", "base").split())
        assert done.stdout.count("waits for its GPU") == 2, done.stderr
        self.stop_agents()

    def session(self, new: str, old: str) -> None:
        assert self.gpulease(new.replace("NAME", "third")).stdout == "third: 1 ready\n"
        assert self.checkout.leased() == [0, 1, 2]
        self.gpulease("gpulease pool stop third")
        process = self.checkout.background(*old.replace("BASE", "base").split())
        wait_until((self.checkout.place / "base" / "agent_pool" / "2.POOL").exists, PATIENCE)
        assert self.checkout.leased() == [0, 1, 2]
        process.terminate()
        assert process.wait(PATIENCE) == 0

    def grow(self, new: str, old: str) -> None:
        assert self.gpulease(new).stdout == "mine: 3 ready\n"

    def cold(self, new: str, old: str) -> None:
        self.gpulease("gpulease pool stop mine")
        reply = self.python(f"with {new} as pool: print(len(set(pool.map(abs, range(5)))))")
        assert reply == "5\n"

    def hot(self, new: str, old: str) -> None:
        self.gpulease("gpulease pool start NAME --gpus 2")
        assert self.python(f"with {new} as pool: print(sum(pool.map(abs, range(5))))") == "10\n"

    def map(self, new: str, old: str) -> None:
        with_shared = self.rows['`shared_data_path=BASE + "data/shared.npz"`'][0]
        each = new.replace("items)", "*zip(*items))")  # two arguments each
        reply = self.python(f"with {code(with_shared)} as pool: print({{value for value, _ in {each}}})")
        assert reply == "{36.0}\n"

    def shared(self, new: str, old: str) -> None:
        text = f"with {new} as pool: print(pool.submit(expensive_task, *items[0]).result()[0])"
        assert self.python(f"matrix = np.eye(4) * 3\n{text}") == "108.0\n"

    def device(self, new: str, old: str) -> None:
        text = "with gpulease.Pool.connect('mine', shared={'matrix_c': matrix}) as pool:\n"
        text += "    future = pool.submit(expensive_task, *items[0])\n"
        text += "    print(future.result()[1] == str(future.device), type(future.device).__name__)"
        assert new == '"cuda"'
        assert self.python(text) == "True int\n"

    def log(self, new: str, old: str) -> None:
        assert re.search(r"worker 1, GPU [01] is ready", self.gpulease(new).stdout)

    def stop(self, new: str, old: str) -> None:
        assert self.gpulease(new).stdout == "stopped mine: 2 workers\n"
        assert self.checkout.leased() == []

    def watch(self, new: str, old: str) -> None:
        process = self.checkout.background(*self.checkout.machine.words(*new.split()[1:]))
        assert process.stdout is not None
        assert process.stdout.readline()

    # ---------------------------------------------------------------- how they are typed

    def gpulease(self, text: str) -> subprocess.CompletedProcess[str]:
        words = self.checkout.machine.words(*text.replace("NAME", "mine").split()[1:])
        done = self.checkout.here(*words)
        assert done.returncode == 0, done.stderr
        return done

    def python(self, text: str) -> str:
        done = self.checkout.here(sys.executable, "-c", USE + text.replace("NAME", "mine"))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop_agents(self) -> None:
        pools = [pool["name"] for pool in self.checkout.machine.json("pool", "ls")["pools"]]
        self.checkout.machine.run("pool", "stop", *(name for name in pools if name.startswith("sge-")))


def test_the_pages_own_program_runs(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"{block('python')}    print(len(results), results[0][0][0])\n")
    environ = {**machine.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    words = [sys.executable, str(tmp_path / "program.py")]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "10 4.0\n", done.stderr


EDITED = """
import os, sys, time
open(f"agent-{sys.argv[1]}", "w").write(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
while not os.path.exists("go"):
    time.sleep(0.02)
"""


def test_who_edited_the_template_keeps_the_files_and_their_agents_hold_leases(machine: Machine, tmp_path: Path) -> None:
    """The page had them removed, with the work that was in them."""
    assert "rm " not in block("bash")
    (tmp_path / "gpu_session.py").write_text(EDITED)
    (tmp_path / "main.py").write_text("print('main')\n")
    python = Path(sys.executable).parent
    shim = tmp_path / "gpulease"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpulease "$@"\n')
    shim.chmod(0o755)
    environ = {**machine.environ, "PATH": f"{tmp_path}:{python}:{machine.environ['PATH']}"}
    with subprocess.Popen(["bash", "-ec", f"{block('sh')}\nwait"], cwd=tmp_path, env=environ) as agents:
        reply = [tmp_path / "agent-0", tmp_path / "agent-1"]
        wait_until(lambda: all(path.exists() and path.read_text() for path in reply))
        assert [path.read_text() for path in reply] == ["all", "all"]  # `cuda:1` is GPU 1
        held = machine.json("status")["leases"]
        assert sorted(label for lease in held for label in lease["labels"]) == ["0", "1"]
        (tmp_path / "go").touch()
        assert agents.wait(PATIENCE) == 0
    wait_until(lambda: machine.json("status")["leases"] == [])
