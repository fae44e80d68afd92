"""`python -m gpulease.compat.sge.gpu_session GPU_ID BASE_FOLDER`: one agent in this terminal."""

from __future__ import annotations

import sys

from gpulease.compat.sge.sessions import main, session

if __name__ == "__main__":
    sys.exit(main(session))
