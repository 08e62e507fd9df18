"""Writes the tables of README and docs, which stand between two comments in their pages.

python docs/tools/tables.py

The first comment names the table and what it is made from, a file of docs/data or a part of the
code, as in `<!-- table: rules -->`; the second is `<!-- end -->`. A test fails where a
page differs from what this writes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
from agreement_page import agreement
from protocol_page import protocol
from readings_page import readings

from guard_core.rules import RULES, Rule
from lab.base.arms import arm
from lab.base.columns import TextTable
from lab.base.errors import UserError
from lab.base.files import whole
from lab.base.stats import difference, differences, estimate, mean_sd

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_PAPER = re.compile(r"https://arxiv\.org/abs/[\d.]*\d")
_TABLE = re.compile(r"^<!-- table: (.+) -->$[\s\S]*?^<!-- (end|table: .+) -->$", re.M)


def main() -> None:
    """Write the tables of all pages."""
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        try:
            new = updated(old)
        except UserError as error:
            sys.exit(f"{page}: {error}")
        if new != old:
            with whole(page) as file:
                file.write_text(new, encoding="utf-8")
            print(page)


def updated(text: str) -> str:
    """Return a page's text with its tables made again.

    Raises:
        UserError: a table has no end, or a name that `MAKERS` lacks.
    """
    return _TABLE.sub(_made, text)


def _made(found: re.Match[str]) -> str:
    name, *words = found[1].split()
    if found[2] != "end":
        raise UserError(f"table {found[1]}: has no <!-- end -->")
    if name not in MAKERS:
        raise UserError(f"table {found[1]}: unknown, give one of {', '.join(MAKERS)}")
    made = "\n".join(MAKERS[name](*words).markdown())
    return f"<!-- table: {found[1]} -->\n\n{made}\n\n<!-- end -->"


def rules() -> TextTable:
    """One row per rule, in the order of `RULES`."""
    head = ["name", "title", "needs", "pays", "label", "settings", "definition"]
    return TextTable(head, [_rule(name, rule) for name, rule in RULES.items()])


def _rule(name: str, rule: type[Rule]) -> list[str]:
    needs = ", ".join(sorted(f"`{need}`" for need in rule.needs)) or "votes"
    settings = ", ".join(f"`{f.name} = {f.default!r}`" for f in fields(rule)) or "none"
    # Of the class's own docstring, since docstrings are not inherited.
    text = (rule.__doc__ or "").strip()
    summary, paper = text.split("\n")[0], _PAPER.search(text)
    linked = f"[`{name}`]({paper[0]})" if paper else f"`{name}`"
    cells = [linked, rule.title, needs, rule.pays, _label(rule), settings, summary]
    return [cell.replace("|", "\\|") for cell in cells]


def _label(rule: type[Rule]) -> str:
    if not rule.has_label:
        return "none"
    return "yes" if rule.follows_label else "of subgroups"


LANGUAGE = ROOT / "docs" / "data" / "language-model.csv"
_LEVEL, _LEAST_PAIRS = 1 - 0.05 / 6, 4
"""Of the protocol: three arms at two learning rates are compared with TTRL."""
_SHOWN = {
    "pass@16": "pass_at_16_final",
    "held-out pass@1": "held_out_pass_at_1_final",
    "pass@1 with numbers": "flexible_pass_at_1_final",
    "false consensus": "false_consensus",
    "leak": "leak",
    "unread": "unread_final",
}


def language(lr: str) -> TextTable:
    """One row per arm of the study of a language model at a learning rate."""
    runs = pd.read_csv(LANGUAGE)
    runs = runs[np.isclose(runs["lr"], float(lr))].set_index("seed")
    final = {str(name): own["pass_final"] for name, own in runs.groupby("arm", sort=False)}
    rows = []
    for name in sorted(final, key=lambda name: (name != "ttrl", -final[name].mean())):
        own = runs[runs["arm"] == name]
        value = estimate(final[name])
        gap = estimate(differences(final[name], final["ttrl"]), _LEVEL)
        shown = difference(gap) if gap.n >= _LEAST_PAIRS else f"{gap.mean:+.1f} ({gap.n} pairs)"
        cells = [arm(name).title, str(value.n), mean_sd(value.mean, value.sd)]
        cells += ["" if name == "ttrl" else shown]
        rows.append([*cells, *(f"{own[column].mean():.1f}" for column in _SHOWN.values())])
    head = ["arm", "seeds", "final pass@1, %", "minus TTRL", *_SHOWN]
    return TextTable(head, rows)


MAKERS: dict[str, Callable[..., TextTable]] = {
    "agreement": agreement,
    "language": language,
    "protocol": protocol,
    "readings": readings,
    "rules": rules,
}
"""Name of a table to its function, which takes the other words of the comment."""


if __name__ == "__main__":
    main()
