"""The entry point of `guard-verl`; its commands stand in `real.verl.commands`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lab.signals import enter


def main(argv: Sequence[str] | None = None) -> int:
    """Run `guard-verl`; returns the exit code."""
    return enter("guard-verl", "real.verl.commands", argv)


if __name__ == "__main__":
    sys.exit(main())
