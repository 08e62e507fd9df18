"""`python -m lab` and the entry point of `guard-report`; its command is `lab.report`."""

from __future__ import annotations

import sys
from functools import partial

from lab.entry import enter

main = partial(enter, "guard-report", "lab.report", "sim")
"""Run `guard-report`; returns the exit code."""


if __name__ == "__main__":
    sys.exit(main())
