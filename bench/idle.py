"""What a broker costs while nobody asks: memory, and time on the processor, with 8 simulated GPUs and one lease held.

Its looks at the devices for the history are in it; bench/history.py tells what these alone cost.

python bench/idle.py [SECONDS]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "common"))

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from interleaved import own_command, to_reach
from processes import children, resident, seconds


def main(span: float) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environ = {**os.environ, "GPULEASE_DIR": folder, "GPULEASE_SIMULATE": "8"}
        gpulease = own_command()
        subprocess.run([gpulease, "get", "--for", "1h"], env=environ, stdout=subprocess.DEVNULL, check=True)
        told = subprocess.run([gpulease, "status", "--json"], env=environ, capture_output=True, text=True, check=True)
        import json

        pid = json.loads(told.stdout)["broker"]["pid"]
        pids = [pid, *children(pid)]
        time.sleep(2)
        before = seconds(pids)
        time.sleep(span)
        part = (seconds(pids) - before) / span * 100
        print(f"broker {resident(pid):.1f} MB, its sampler {resident(pids[-1]):.1f} MB, {part:.3f} % of a core")
        to_reach("broker, MB", resident(pid), 40)
        to_reach("processor, % of a core", part, 0.2)
        subprocess.run([gpulease, "stop"], env=environ, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)
