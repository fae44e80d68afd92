"""`python -m gpulease.compat.sge.start_agents NUMBER_OF_AGENTS BASE_FOLDER`: agents in the background."""

from __future__ import annotations

import sys

from gpulease.compat.sge.sessions import main, start_all

if __name__ == "__main__":
    sys.exit(main(start_all))
