#!/usr/bin/env python3
"""sge-template's gpu_session.py: one agent in this terminal, which holds its GPU."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "python"))

from sge.gpu_session import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
