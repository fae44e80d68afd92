"""A command in the place of ssh: gpu1 is this machine, gpu2 cannot be reached, gpu3 hangs until the test lets it go."""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPT = """\
#!/bin/sh
while [ "$1" != -- ]; do shift; done
echo "$2" >> {folder}/asked
PATH={programs}:$PATH
case $2 in
gpu1) exec sh -c "$3" ;;
gpu2) echo 'ssh: connect to host gpu2: <script>alert(1)</script>' >&2; exit 255 ;;
*) until [ -e {folder}/go ]; do sleep 0.05; done; exit 255 ;;
esac
"""


class StandInSsh:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "ssh").write_text(SCRIPT.format(folder=folder, programs=Path(sys.executable).parent))
        (folder / "ssh").chmod(0o755)
        self.environ = {"GPULEASE_SSH": str(folder / "ssh"), "GPULEASE_HOST_TIMEOUT": "300"}

    def asked(self) -> list[str]:
        """Each host as often as it was."""
        asked = self._folder / "asked"
        return asked.read_text().split() if asked.exists() else []

    def let_go(self) -> None:
        (self._folder / "go").touch()
