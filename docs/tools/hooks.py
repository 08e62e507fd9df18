"""Insert the tables of the trace schema into the docs, generated from the code."""

from __future__ import annotations

from typing import Any

from lab.trace.schema import SCHEMA_VERSION, TABLES, Column


def on_page_markdown(markdown: str, **others: Any) -> str:
    """Replace a line `COLUMNS table` by the table of that table's columns."""
    lines = [
        _columns(line.split()[1]) if line.startswith("COLUMNS ") else line
        for line in markdown.split("\n")
    ]
    return "\n".join(lines)


def _columns(table: str) -> str:
    rows = [
        f"| `{column.name}` | {column.dtype} | {column.unit} | {_meaning(column)} |"
        for column in TABLES[table]
    ]
    head = [f"Schema version {SCHEMA_VERSION}.", "", "| column | type | unit | meaning |"]
    return "\n".join([*head, "| --- | --- | --- | --- |", *rows])


def _meaning(column: Column) -> str:
    marks = [] if column.required else ["optional"]
    marks += ["needs the truth"] if column.needs_truth else []
    return f"{column.meaning} ({', '.join(marks)})" if marks else column.meaning
