"""Insert the table of rules into the docs, generated from the code."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from guard_core.rules import RULES, Rule

HEAD = "| name | title | needs | pays | label | settings | definition |"


def on_page_markdown(markdown: str, **others: Any) -> str:
    """Replace a line `RULES` by the table of all rules."""
    lines = [rules_table() if line == "RULES" else line for line in markdown.split("\n")]
    return "\n".join(lines)


def rules_table() -> str:
    """One row per rule, in the order of `RULES`."""
    rows = [_row(name, rule) for name, rule in RULES.items()]
    return "\n".join([HEAD, "| --- " * HEAD.count(" | ") + "| --- |", *rows])


def _row(name: str, rule: type[Rule]) -> str:
    needs = ", ".join(sorted(f"`{need}`" for need in rule.needs)) or "votes"
    settings = ", ".join(f"`{f.name} = {f.default!r}`" for f in fields(rule)) or "none"
    cells = (f"`{name}`", rule.title, needs, rule.pays, _label(rule), settings, _summary(rule))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _label(rule: type[Rule]) -> str:
    if not rule.has_label:
        return "none"
    return "one per problem" if rule.follows_label else "one per subgroup"


def _summary(rule: type[Rule]) -> str:
    """The first line of the docstring; the class's own, since docstrings are not inherited."""
    return (rule.__doc__ or "").strip().split("\n")[0]
