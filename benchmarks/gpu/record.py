"""Measures of a section, the file that they are written to, and the table that shows them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]
"""One section that ran: `section`, `part`, `status`, `seconds`, `dry`, `facts`, `measures`,
`error`."""


class Report:
    """Writes every measure of a section to a file as soon as it is known."""

    def __init__(self, path: Path, dry: bool) -> None:
        """Append to the file.

        Args:
            path: of the file, one JSON object a line.
            dry: no speed is judged.
        """
        self.missed: list[str] = []
        """Measures that are outside their bounds."""
        self._path, self._dry = path, dry

    def add(self, name: str, value: float | str, unit: str = "") -> None:
        """Write a measure without a bound."""
        self._write({"name": name, "value": _plain(value), "unit": unit})

    def check(self, name: str, value: float, at_most: float, unit: str = "") -> None:
        """Write a number whose bound holds on every machine."""
        self._judged(name, value, unit, "<=", at_most, value <= at_most)

    def target(
        self,
        name: str,
        value: float,
        unit: str = "",
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """Write a number whose bound is for a GPU; a dry run does not judge it."""
        if at_most is not None:
            self._judged(name, value, unit, "<=", at_most, self._dry or value <= at_most)
        if at_least is not None:
            self._judged(name, value, unit, ">=", at_least, self._dry or value >= at_least)

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Write what the section runs on."""
        self._write({"facts": dict(facts)})

    def _judged(
        self, name: str, value: float, unit: str, sign: str, bound: float, kept: bool
    ) -> None:
        if not kept:
            self.missed.append(name)
        words = f"{sign} {bound:g}{' ' * bool(unit)}{unit}"
        self._write(
            {"name": name, "value": _plain(value), "unit": unit, "bound": words, "kept": kept}
        )

    def _write(self, line: Mapping[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def read_lines(path: Path) -> list[Record]:
    """Return the JSON objects of a file; a last line that was cut off is left out."""
    lines = path.read_text().splitlines() if path.exists() else []
    found: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise
    return found


def table(records: Iterable[Record]) -> Iterator[str]:
    """Yield a Markdown table of the measures of some sections."""
    yield "| section | measure | value | bound | |"
    yield "| --- | --- | --- | --- | --- |"
    for record in records:
        name = f"`{record['section']}`"
        for measure in record["measures"]:
            bound = measure.get("bound", "")
            judged = bool(bound) and not record["dry"]
            verdict = {True: "reached", False: "**missed**"}[measure["kept"]] if judged else ""
            value = f"{_shown(measure['value'])} {measure['unit']}".rstrip()
            yield f"| {name} | {_cell(measure['name'])} | {_cell(value)} | {bound} | {verdict} |"
        if record["status"] not in ("done", "missed"):
            words = f"{record['status']}: {record.get('error', '')}".rstrip(": ")
            yield f"| {name} | - | {_cell(words)} | | |"


def _plain(value: float | str) -> float | str | None:
    """A value that JSON has: no NaN, no infinity."""
    if isinstance(value, str) or math.isfinite(value):
        return value
    return None


def _shown(value: Any) -> str:
    if value is None:
        return "not finite"
    return value if isinstance(value, str) else f"{value:,.4g}" if value < 1e5 else f"{value:,.0f}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
