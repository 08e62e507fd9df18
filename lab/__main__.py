"""`python -m lab`: the same as `guard-report`."""

from __future__ import annotations

import sys

from lab.report.cli import main

if __name__ == "__main__":
    sys.exit(main())
