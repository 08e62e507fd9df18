"""Entry point of verl's plugin group: makes `trainer.v1.trainer_mode=ttrl_guard` known.

verl swallows what a plugin raises, and then only says that the trainer is unknown; so the reason is
printed here.
"""

from __future__ import annotations

import os
import sys

from packaging.specifiers import SpecifierSet

try:
    import verl  # first: it loads this package while it is imported, whoever comes first

    known = SpecifierSet("~=0.9.1").contains(verl.__version__, prereleases=True)
    if not known and not os.environ.get("GUARD_VERL_ANY"):
        raise ImportError(f"verl {verl.__version__}: needs 0.9.1 or a later 0.9; install that")
    import real.verl.plugin.trainer  # noqa: F401
except Exception as error:
    reason = str(error).partition("\n")[0]
    print(f"ttrl_guard: not loaded: {type(error).__name__}: {reason}", file=sys.stderr)
    raise
