"""`python -m real` and the entry point of `guard-train`; its commands stand in `real.commands`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lab.entry import enter


def main(argv: Sequence[str] | None = None) -> int:
    """Run `guard-train`; returns the exit code."""
    return enter("guard-train", "real.commands", "real", argv)


if __name__ == "__main__":
    sys.exit(main())
