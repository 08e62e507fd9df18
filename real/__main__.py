"""`python -m real` and the entry point of `guard-train`; its commands stand in `real.commands`."""

from __future__ import annotations

import sys
from functools import partial

from lab.entry import enter

main = partial(enter, "guard-train", "real.commands", "real")
"""Run `guard-train`; returns the exit code."""


if __name__ == "__main__":
    sys.exit(main())
