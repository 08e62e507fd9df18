"""What every run leaves behind, and how it is read."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lab.errors import UserError

if TYPE_CHECKING:
    from lab.collection import Collection, Comparison, collect
    from lab.fate import fate_shares, fates
    from lab.manifest import Manifest
    from lab.store import MemoryRun, Recorder, RunFolder
    from lab.trace import Trace, load

# Reading needs pandas and pyarrow, which take a second to import: only when first asked for.
_HOMES = {
    "Collection": "lab.collection",
    "Comparison": "lab.collection",
    "Manifest": "lab.manifest",
    "MemoryRun": "lab.store",
    "Recorder": "lab.store",
    "RunFolder": "lab.store",
    "Trace": "lab.trace",
    "collect": "lab.collection",
    "fate_shares": "lab.fate",
    "fates": "lab.fate",
    "load": "lab.trace",
}

__all__ = [
    "Collection",
    "Comparison",
    "Manifest",
    "MemoryRun",
    "Recorder",
    "RunFolder",
    "Trace",
    "UserError",
    "collect",
    "fate_shares",
    "fates",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lab' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
