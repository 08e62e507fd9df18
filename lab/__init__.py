"""The run folder of both worlds, and its analyses, figures and reports."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lab.base.errors import UserError

if TYPE_CHECKING:
    from guard_core import __version__
    from lab.compare.agreement import agreement
    from lab.compare.collection import Collection, Comparison, collect
    from lab.measures.fate import fate_shares, fates
    from lab.trace.manifest import Manifest
    from lab.trace.trace import MemoryRun, Recorder, RunFolder, Trace, load

# Reading needs pandas and pyarrow, which take a second to import: only when first asked for.
_NAMES = {
    "guard_core": "__version__",
    "lab.compare.agreement": "agreement",
    "lab.compare.collection": "Collection Comparison collect",
    "lab.measures.fate": "fate_shares fates",
    "lab.trace.manifest": "Manifest",
    "lab.trace.trace": "MemoryRun Recorder RunFolder Trace load",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Collection",
    "Comparison",
    "Manifest",
    "MemoryRun",
    "Recorder",
    "RunFolder",
    "Trace",
    "UserError",
    "__version__",
    "agreement",
    "collect",
    "fate_shares",
    "fates",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lab' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
