"""Entry point of verl's plugin group: makes `trainer.v1.trainer_mode=ttrl_guard` known.

verl swallows what a plugin raises, and then only says that the trainer is unknown; so the reason is
printed here.
"""

from __future__ import annotations

import os
import sys

TESTED = "0.9.1"
"""Version of verl that the tests run; later ones of 0.9 are taken as well."""


def _load() -> None:
    import verl  # first: it loads this package while it is imported, whoever comes first

    version, tested = (tuple(map(int, v.split(".")[:3])) for v in (verl.__version__, TESTED))
    if (version[:2] != tested[:2] or version < tested) and not os.environ.get("GUARD_VERL_ANY"):
        raise ImportError(f"verl {verl.__version__}: needs {TESTED} or a later 0.9; install that")
    import real.verl.plugin.agent
    import real.verl.plugin.trainer  # noqa: F401


try:
    _load()
except Exception as error:
    reason = str(error).partition("\n")[0]
    print(f"ttrl_guard: not loaded: {type(error).__name__}: {reason}", file=sys.stderr)
    raise
