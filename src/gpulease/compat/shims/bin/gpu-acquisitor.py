#!/usr/bin/env python3
"""gpu-acquisitor, under the file name that safe-gpu's document has."""

import os
import runpy

if __name__ == "__main__":
    here = os.path.dirname(os.path.realpath(__file__))
    runpy.run_path(os.path.join(here, "gpu-acquisitor"), run_name="__main__")
