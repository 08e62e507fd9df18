"""Starts runs of several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest


@pytest.fixture(scope="session")
def rank_server() -> Iterator[Any]:
    """The function of `rank_runs.server` that starts a run: torch is imported once."""
    from rank_runs import server

    with server() as run:
        yield run


@pytest.fixture(scope="module")
def ranks(rank_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """As `rank_server`, in a place of the module's own."""
    return partial(rank_server, tmp_path_factory.mktemp("ranks"))


@pytest.fixture
def few_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracy of a tiny model that has learnt nothing needs no 4096 responses."""
    from real.tiny import pretrain

    monkeypatch.setattr(pretrain, "measure", partial(pretrain.measure, n_problems=4, n_votes=4))


@pytest.fixture(scope="module")
def equality() -> Any:
    """Of answers, by their values."""
    from real.answers import Equality

    return Equality()
