"""`python -m gpulease`."""

import sys

from gpulease.cli.main import main

sys.exit(main())
