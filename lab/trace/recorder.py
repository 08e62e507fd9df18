"""Interface between a run and the place where its rows are written."""

from __future__ import annotations

from typing import Any, Protocol

from lab.trace.manifest import Manifest
from lab.trace.schema import Columns


class Recorder(Protocol):
    """Destination of a run's rows: a `RunFolder`, or a `MemoryRun` that writes no files."""

    manifest: Manifest

    def write_visits(self, columns: Columns, *, copy: bool = True) -> None:
        """Add rows to the visits."""

    def write_steps(self, columns: Columns, *, copy: bool = True) -> None:
        """Add rows to the steps."""

    def write_evals(self, columns: Columns, *, copy: bool = True) -> None:
        """Add rows to the evaluations."""

    def write_votes(self, columns: Columns, *, copy: bool = True) -> None:
        """Add rows to the votes, which a run may leave out altogether."""

    def write_answers(self, columns: Columns, *, copy: bool = True) -> None:
        """Add rows to the answers' texts, which a run may leave out altogether."""

    def note(self, progress: float | None = None, **extra: Any) -> None:
        """Note how far the run is, and facts for the manifest's `extra`."""
