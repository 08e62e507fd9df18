"""Measures of a section, the file that they are written to, and the table that shows them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from math import inf, isfinite
from pathlib import Path
from typing import Any

from lab.base.columns import TextTable

PRODUCT = "product, 8192^3"
"""Measure of the speed of a plain product, on which limits and targets depend."""
Record = dict[str, Any]
"""One section that ran: `section`, `part`, `status`, `seconds`, `dry`, `facts`, `measures`,
`error`."""


class Report:
    """Writes every measure of a section to a file as soon as it is known."""

    def __init__(self, path: Path, dry: bool) -> None:
        """Append to a file of one JSON object a line; in a dry run no speed is judged."""
        self.missed: list[str] = []
        """Measures that are outside their bounds."""
        self._path, self._dry = path, dry

    def add(self, name: str, value: float | str, unit: str = "", **more: Any) -> None:
        """Write a measure."""
        finite = isinstance(value, str) or isfinite(value)  # JSON has no NaN, no infinity
        self._write({"name": name, "value": value if finite else None, "unit": unit, **more})

    def rate(self, rate: str, value: float, unit: str) -> None:
        """Write a speed that `guard-train plan --measured` takes in place of an assumed one."""
        known = {"rate": rate} if 0 < value < inf else {}
        self.add(f"rate: {rate}", value, unit, **known)

    def check(self, name: str, value: float, at_most: float, unit: str = "") -> None:
        """Write a number whose bound holds on every machine."""
        self._judged(name, value, unit, f"<= {at_most:g}", value <= at_most)

    def target(
        self, name: str, value: float, unit: str = "", at_most: float = inf, at_least: float = -inf
    ) -> None:
        """Write a number whose bound, one of the two, is for a GPU; a dry run does not judge it."""
        bound = f"<= {at_most:g}" if at_most < inf else f">= {at_least:g}"
        self._judged(name, value, unit, bound, self._dry or at_least <= value <= at_most)

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Write what the section runs on."""
        self._write({"facts": facts})

    def _judged(self, name: str, value: float, unit: str, bound: str, kept: bool) -> None:
        if not kept:
            self.missed.append(name)
        self.add(name, value, unit, bound=f"{bound} {unit}".rstrip(), kept=kept)

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
    """Return a Markdown table of the measures of some sections."""
    rows: list[list[str]] = []
    for record in records:
        name = f"`{record['section']}`"
        for measure in record["measures"]:
            bound = measure.get("bound", "")
            judged = bool(bound) and not record["dry"]
            verdict = {True: "reached", False: "**missed**"}[measure["kept"]] if judged else ""
            value = f"{_shown(measure['value'])} {measure['unit']}"
            rows.append([name, _cell(measure["name"]), _cell(value), bound, verdict])
        if record["status"] not in ("done", "missed"):
            words = f"{record['status']}: {record.get('error', '')}".rstrip(": ")
            rows.append([name, "-", _cell(words), "", ""])
    return TextTable(["section", "measure", "value", "bound", ""], rows).markdown()


def _shown(value: Any) -> str:
    if value is None:
        return "not finite"
    return value if isinstance(value, str) else f"{value:,.4g}" if value < 1e5 else f"{value:,.0f}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
