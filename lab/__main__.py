"""`python -m lab` and the entry point of `guard-report`; its command is `lab.report`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lab.entry import enter


def main(argv: Sequence[str] | None = None) -> int:
    """Run `guard-report`; returns the exit code."""
    return enter("guard-report", "lab.report", "sim", argv)


if __name__ == "__main__":
    sys.exit(main())
