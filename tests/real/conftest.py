"""Makes the helpers of this folder importable by its tests, and starts runs of several ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The function of `rank_runs.server` that starts a run."""
    from rank_runs import server

    with server(tmp_path_factory.mktemp("ranks")) as run:
        yield run
