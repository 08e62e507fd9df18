"""Text of a trace in Markdown."""

from __future__ import annotations


def escaped(text: str) -> str:
    """Nothing of a trace may open a cell, a tag or a link."""
    for mark, harmless in (("|", "\\|"), ("<", "&lt;"), ("[", "\\["), ("\n", " ")):
        text = text.replace(mark, harmless)
    return text
