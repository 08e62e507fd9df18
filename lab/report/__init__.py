"""The report: one self-contained HTML page from the run folders of one or several worlds."""

from __future__ import annotations

from lab.report.digest import World, digest, read
from lab.report.page import page
from lab.report.writing import Written, is_report, write_report

__all__ = ["World", "Written", "digest", "is_report", "page", "read", "write_report"]
