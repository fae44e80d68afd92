#!/usr/bin/env python3
"""sge-template's gpu_session.py: one agent in this terminal, which holds its GPU."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "python"))

try:
    import gpulease_shim
except ImportError:
    sys.exit("gpu_session.py: Its folder `python` is not found. Link to it instead of copying it, or set PYTHONPATH.")

try:
    from sge.gpu_session import main
except (ImportError, gpulease_shim.GpuleaseFailed) as trouble:
    sys.exit("gpu_session.py: {}".format(trouble))

if __name__ == "__main__":
    sys.exit(main())
