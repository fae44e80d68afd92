"""Records what an older tool prints: python tests/compat/record.py TOOL [FOLDER FOR PYTHONPATH] [FOLDER FOR PATH]

Only to be run when tests/compat/calls/TOOL.toml has new calls. The tests need the table alone.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.machine import Machine
from support.recorded import BACKENDS, FOLDER, Call, Printed, calls_of, make


def record(call: Call, python: str, path: str) -> Printed:
    with TemporaryDirectory() as folder:
        machine = Machine(Path(folder), call.gpus, call.profile)
        environ = {**machine.environ, "PYTHONPATH": f"{python}{os.pathsep}{BACKENDS}"}
        environ["PATH"] = f"{path}{os.pathsep}{os.path.dirname(sys.executable)}{os.pathsep}{environ['PATH']}"
        printed, said = make(call, machine, environ)
    print(f"== {call.name}\n{printed.stdout}{said}exit code {printed.code}", file=sys.stderr)
    return printed


def main(tool: str, python: str = "", path: str = "") -> None:
    table = {call.name: record(call, python, path) for call in calls_of(tool)}
    (FOLDER / "recorded" / f"{tool}.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
